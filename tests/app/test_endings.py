"""Finished jobs on the pages: a result in the list, a verdict after a training, a report after an evaluation."""

from dataclasses import replace
from html import unescape

import pytest

from app.pages import checkpoints, jobs
from app.pages.jobs import head
from app.views import evaluation_view, job_rows, verdict
from app.views.verdict import TrainingFacts
from app.widgets.list_query import ListQuery
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.evaluations import columns_of
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job
from workers.jobs.requests import KINDS

LINKS = {name: f"/{name}" for name in ("prompts", "data", "longer", "method", "chat", "evaluate")}
FACTS = TrainingFacts(tau=1.5, measured=False)


@pytest.mark.parametrize(
    ("facts", "text", "tone", "link"),
    [
        (replace(FACTS, tau=None), "its quality is unknown", "info", "/evaluate"),
        (replace(FACTS, tau=2.0, rows=100, prompts=900), "held-out", "info", "/evaluate"),
        (replace(FACTS, tau=2.4, measured=True), "Evaluate it on questions to measure its speed", "info", "/evaluate"),
        (
            replace(FACTS, rows=100, prompts=900),
            "on 100 conversations. Generate responses to all 900",
            "info",
            "/prompts",
        ),
        (replace(FACTS, rows=100, prompts=0), "Import more prompts", "info", "/data"),
        (replace(FACTS, rows=2_500, prompts=2_600, still_learning=True), "train it longer", "info", "/longer"),
        (replace(FACTS, rows=2_500), "EAGLE-3 has a higher acceptance rate", "info", "/method"),
        (replace(FACTS, tau=1.2, rows=2_500), "estimated on held-out conversations", "info", "/method"),
        (replace(FACTS, tau=1.2, rows=2_500, measured=True), "too low", "warn", "/method"),
        (
            replace(FACTS, tau=1.9, measured=True, speedup=0.8, slower=True, rows=9_000),
            "too slow: 0.80 ×",
            "warn",
            "/method",
        ),
        (replace(FACTS, tau=2.4, measured=True, speedup=0.8, slower=True, rows=9_000), "too slow", "warn", "/method"),
        (replace(FACTS, tau=2.4, measured=True, speedup=1.7), "1.70 × the baseline", "good", "/chat"),
    ],
)
def test_a_verdict_says_what_it_means_and_what_to_do_next(
    facts: TrainingFacts, text: str, tone: str, link: str
) -> None:
    result = verdict.verdict(facts, LINKS)
    assert text in result.text
    assert (result.tone, result.link) == (tone, link)
    assert result.button


def test_an_estimate_gives_no_verdict_on_speed() -> None:
    result = verdict.verdict(replace(FACTS, tau=1.2, rows=2_500), LINKS)
    assert "too low" not in result.text
    assert "Evaluate it on questions" in result.text


@pytest.mark.parametrize(
    ("kind", "result", "text"),
    [
        ("import_prompts", {"rows": 1_200, "bad_rows": 3}, "1,200 rows · 3 skipped"),
        ("import_answered", {"rows": 8, "bad_rows": 0}, "8 rows"),
        ("generate_data", {"rows": 40, "tokens": 9_000}, "40 responses · 9,000 tokens"),
        ("train", {"mean_accepted_length": 1.456, "loss": 2.5, "step": 9}, "held-out τ 1.46 · loss 2.500"),
        ("evaluate", {"mean_accepted_length": 2.1, "speedup": 1.66}, "τ 2.10 · 1.66 ×"),
        ("evaluate", {"mean_accepted_length": 2.1, "speedup": None}, "τ 2.10"),
        ("matrix", {"cells": 48}, "48 cells"),
        ("plan", {"verdict": "A tree of six is fastest."}, "A tree of six is fastest."),
        ("tune", {"verdict": "6 nodes, depth 2."}, "6 nodes, depth 2."),
        ("replay", {"tau": 2.0, "projected_speedup": 1.5}, "τ 2.00 · 1.50 × projected"),
        ("export", {"format": "vllm", "bytes": 2_500_000}, "vllm · 2.5 MB"),
        ("import_draft", {"method": "eagle3"}, "EAGLE-3"),
        ("generate_data", {}, ""),
        ("somebody's own", {"rows": 1}, ""),
    ],
)
def test_every_job_that_is_done_says_its_result(kind: str, result: dict, text: str) -> None:
    job = Job(name="a", kind=kind, queue="io", state="SUCCEEDED", result=result)
    assert job_rows.outcome(job) == text
    job.state = "RUNNING"
    assert job_rows.outcome(job) == ""


def test_every_kind_of_job_has_a_result_text() -> None:
    assert job_rows.RESULTS.keys() == {request.kind for request in KINDS}


@pytest.fixture
def trained(home: Settings) -> Settings:
    """A training that succeeded on 40 of 3,000 prompts, and its checkpoint."""
    config = {"source_id": "prompts", "base_id": "base", "max_tokens": 64, "limit": 40}
    figures = {"mean_accepted_length": 1.4, "best_step": 10, "step": 12, "loss": 3.0}
    with writing(home) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="/x", path="/x", state="ready"))
        session.add(Dataset(id="prompts", name="prompts", kind="prompts", state="ready", rows=3_000))
        session.flush()
        data = Dataset(id="answers", name="answers", kind="conversations", state="ready", rows=40, base_id="base")
        data.source_id, data.config = "prompts", config
        request = {"method": "medusa", "base_id": "base", "dataset_id": "answers", "checkpoint_id": "heads"}
        job = Job(id="job", name="Train heads", kind="train", queue="gpu", state="SUCCEEDED", request=request)
        job.result = {"checkpoint_id": "heads", **figures}
        session.add_all([data, job])
        session.flush()
        heads = Checkpoint(id="heads", name="heads", method="medusa", state="ready", base_id="base", job_id="job")
        heads.dataset_id, heads.figures = "answers", figures
        session.add(heads)
    return home


def job_html(settings: Settings, job_id: str = "job") -> str:
    with reading(settings) as session:
        return unescape(head(session, session.get_one(Job, job_id)))


def test_a_training_ends_with_its_verdict_and_the_button(trained: Settings) -> None:
    html = job_html(trained)
    assert "τ 1.40 estimated on held-out conversations" in html
    assert 'href="/data?id=prompts"' in html and "Generate responses to all 3,000 prompts" in html


def test_the_evaluation_that_followed_decides_and_is_linked(trained: Settings) -> None:
    with writing(trained) as session:
        pending = Evaluation(id="first", name="e", state="pending", base_id="base", checkpoint_id="heads", job_id="job")
        pending.suite = "built_in"
        session.add(pending)
    assert "Open its running evaluation" in job_html(trained)
    result = {"mean_accepted_length": 2.3, "speedup": 1.6, "speedup_interval": [1.5, 1.7]}
    with writing(trained) as session:
        row = session.get_one(Evaluation, "first")
        row.state, row.result = "ready", result
        for name, value in columns_of(result).items():
            setattr(row, name, value)
    html = job_html(trained)
    assert "τ 2.30 on questions" in html and "1.60 × the baseline" in html
    assert 'href="/results?id=first"' in html and "running evaluation" not in html


def test_an_open_page_notices_the_evaluation_that_followed(trained: Settings) -> None:
    """The signature changes when the evaluation is added and when it ends."""

    def signature() -> str:
        with reading(trained) as session:
            return jobs.row_signature(session, "job")

    signatures = [signature()]
    with writing(trained) as session:
        draft = session.query(Checkpoint).filter_by(job_id="job").one()
        session.add(Evaluation(id="later", name="later", checkpoint_id=draft.id, base_id=draft.base_id))
    signatures.append(signature())
    with writing(trained) as session:
        session.get_one(Evaluation, "later").state = "ready"
    signatures.append(signature())
    assert len({*signatures}) == 3 and signatures[-1] == signature()


def test_a_failed_training_has_no_verdict(trained: Settings) -> None:
    with writing(trained) as session:
        session.get_one(Job, "job").state = "FAILED"
    assert 'id="verdict"' not in job_html(trained)


def test_an_evaluations_job_shows_its_report(trained: Settings) -> None:
    result = {
        **{"mean_accepted_length": 2.3, "speedup": 1.6, "speedup_interval": [1.5, 1.7], "identical_to_plain": True},
        "mean_accepted_length_interval": [2.2, 2.4],
        "acceptance_by_depth": [0.61, 0.42],
        "per_category": {"math": {"speedup": 1.9, "prompts": 4}, "prose": {"speedup": 1.2, "prompts": 6}},
    }
    with writing(trained) as session:
        ready = {
            "state": "ready",
            "suite": "built_in",
            "base_id": "base",
            "checkpoint_id": "heads",
            "job_id": "measure",
        }
        session.add(Evaluation(id="e", name="e", **ready, result=result, **columns_of(result)))
        job = Job(id="measure", name="Evaluate", kind="evaluate", queue="gpu", state="SUCCEEDED", result=result)
        job.request = {"evaluation_id": "e"}
        session.add(job)
    html = job_html(trained, "measure")
    for text in ("2.20 – 2.40 (95 %)", "1.50 – 1.70 × (95 %)", "61%", "math", "prose"):
        assert text in html, text
    with reading(trained) as session:
        assert evaluation_view.report_of(session, session.get_one(Job, "job")) == ""
        assert "τ 2.30 · 1.60 ×" in jobs.table(session, ListQuery("All"))
    assert "The evaluation is stored." in html
    with writing(trained) as session:
        session.delete(session.get_one(Evaluation, "e"))
    assert "The evaluation is stored." not in job_html(trained, "measure")


def test_the_list_of_checkpoints_tells_measured_from_estimated(trained: Settings) -> None:
    with reading(trained) as session:
        assert ">estimated<" in checkpoints.CHECKPOINTS.html(session, ListQuery("All"), "")
    with writing(trained) as session:
        result = {"mean_accepted_length": 2.0, "tokens_per_second": 30.0}
        session.add(
            Evaluation(name="e", state="ready", suite="built_in", base_id="base", checkpoint_id="heads", result=result)
        )
    with reading(trained) as session:
        html = checkpoints.CHECKPOINTS.html(session, ListQuery("All"), "")
        assert ">measured<" in html and ">estimated<" not in html


def test_a_running_job_has_a_bar_and_a_done_one_its_result(trained: Settings) -> None:
    job = Job(id="x", name="x", kind="train", queue="gpu", state="RUNNING", done=4, total=10, unit="steps")
    job.progress_note = ""
    assert "<progress" in job_rows.jobs_table([job], {})
    with reading(trained) as session:
        html = jobs.table(session, ListQuery("All"))
    assert "<progress" not in html and "held-out τ 1.40 · loss 3.000" in html
