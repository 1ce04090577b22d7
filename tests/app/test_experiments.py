"""Experiments: created, filled and emptied; their page, curve and CSV."""

import csv
import io
import re

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import downloads, events
from app.pages import experiments as page
from app.pages import jobs as jobs_page
from app.views.manage import delete, question, row, save
from app.widgets.bulk import run_bulk_action
from app.widgets.list_query import ListQuery
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError
from speculoos.settings import Settings
from tracking import changes, db, experiments, queries
from tracking.reports import JobReport, write
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Experiment, Job
from workers.jobs.requests import Export, Train

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"
FORMULA = "=1+1"
TOKEN = "hf_" + "a" * 30


@pytest.fixture
def filled(home: Settings) -> Settings:
    """An experiment of three trainings on more and more data, an export of one draft, and a job without experiment."""
    with db.writing(home) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="/x", state="ready"))
        session.add(Dataset(id="prompts", name=HOSTILE, kind="prompts", state="ready", rows=10))
        session.flush()
        session.add(Experiment(id="exp", name=FORMULA, note=HOSTILE))
        session.add(
            Dataset(id="data", name="answers", kind="conversations", state="ready", rows=9, source_id="prompts")
        )
        session.flush()
        for number, name in enumerate(("one", "two", FORMULA), 1):
            add_training(session, home, name, number)
        request = Export(checkpoint_id="draft-1", format="vllm").to_json()
        session.add(Job(id="export", name="Export", kind="export", queue="io", state="SUCCEEDED", request=request))
        session.add(Job(id="other", name=f"Plan {TOKEN}", kind="plan", queue="gpu", state="SUCCEEDED"))
    return home


def add_training(session: db.Session, home: Settings, name: str, number: int) -> None:
    settings = {"lr": 0.001, "draft_path": f"{home.home}/checkpoints/d/attempt-1"} if number == 3 else {"lr": 0.001}
    request = Train("medusa", "base", "data", settings, checkpoint_id=f"draft-{number}").to_json()
    job = Job(id=f"job-{number}", name=f"Train {name}", kind="train", queue="gpu", state="RUNNING", attempt=1)
    job.request, job.experiment_id = request, "exp"
    session.add(job)
    draft = Checkpoint(
        id=f"draft-{number}", name=name, method="medusa", base_id="base", dataset_id="data", state="ready"
    )
    draft.job_id, draft.figures, draft.config = job.id, {"tokens": 1000 * 2**number}, request
    draft.path = f"{home.home}/checkpoints/d/attempt-1" if number == 1 else ""
    session.add(draft)
    session.flush()
    write(session, job.id, 1, JobReport(metrics={("train/loss", 1): 2.0, ("eval/tau", 1): 1 + number / 10}))
    job.state = "SUCCEEDED"
    row = Evaluation(name=name, base_id="base", checkpoint_id=draft.id, state="ready", suite="own", questions="GSM8K")
    row.tau, row.tau_low, row.tau_high, row.speedup = 1.5 + number / 10, 1.4 + number / 10, 1.6 + number / 10, 1.2
    session.add(row)


def parts(settings: Settings) -> list[str]:
    with db.reading(settings) as session:
        return page.parts(session, session.get_one(Experiment, "exp"))


def client(settings: Settings) -> TestClient:
    app = FastAPI()
    app.include_router(downloads.routes(settings))
    app.add_exception_handler(SpeculoosError, events.answer_error)
    return TestClient(app)


def test_names_of_experiments_are_unique(home: Settings) -> None:
    with db.writing(home) as session:
        experiment = queries.ensure_experiment(session, "  rates ")
        assert experiment.name == "rates" and queries.ensure_experiment(session, "rates") is experiment
        with pytest.raises(BadInput, match="cannot be empty"):
            queries.ensure_experiment(session, " ")
        other = queries.ensure_experiment(session, "data")
    with pytest.raises(Conflict, match="experiment named 'rates'"):
        save(home, Experiment, "experiment", other.id, "rates", "")
    assert save(home, Experiment, "experiment", other.id, "amounts", "how much") == "Saved."


def test_jobs_are_added_by_name_and_taken_out_with_what_they_made(filled: Settings) -> None:
    add = jobs_page.actions(filled)["add"]
    assert "Added to the experiment: 2." in run_bulk_action(add, ["job-1", "other"], "sizes")
    assert "Not done: 1. A name cannot be empty." in run_bulk_action(add, ["job-2"], "  ")
    assert "This job does not exist" in run_bulk_action(add, ["nowhere"], "sizes")
    with db.reading(filled) as session:
        experiment = session.query(Experiment).filter_by(name="sizes").one()
        assert [job.id for job in experiments.jobs_of(session, experiment.id)] == ["job-1", "other"]
        assert session.get_one(Checkpoint, "draft-1").experiment_id == experiment.id
        assert experiments.counts(session, [experiment.id, "exp"]) == {experiment.id: (2, 1, 0), "exp": (2, 2, 0)}
    page.remove(filled, "job-1")
    with db.reading(filled) as session:
        assert session.get_one(Job, "job-1").experiment_id is None
        assert session.get_one(Checkpoint, "draft-1").experiment_id is None


def test_a_shard_cannot_be_moved_to_an_experiment(filled: Settings) -> None:
    with db.writing(filled) as session:
        session.add(Job(id="shard", name="Part 1", kind="train", queue="gpu", parent_id="other", number=1))
    with db.writing(filled) as session, pytest.raises(Conflict, match="part of another job"):
        experiments.move_to_experiment(session, "shard", "sizes")


def test_deleting_leaves_the_jobs(filled: Settings) -> None:
    assert "Its jobs, datasets and drafts are kept" in question(filled, Experiment, "experiment", "exp")
    delete(filled, Experiment, "experiment", "exp")
    with db.reading(filled) as session:
        assert session.get(Experiment, "exp") is None and session.get_one(Job, "job-1").experiment_id is None
        assert session.get_one(Checkpoint, "draft-1").state == "ready"


def test_its_page_shows_names_and_notes_literally(filled: Settings) -> None:
    html = "".join(parts(filled))
    assert "<img" not in html and "${" not in html and "&lt;img" in html
    with db.reading(filled) as session:
        listed = page.experiments_table(session)
        assert "<img" not in listed and FORMULA in listed
        assert "No matches" in page.experiments_table(session, ListQuery("All", "nowhere"))


def test_its_page_has_figures_jobs_and_links(filled: Settings) -> None:
    head, figures, curves, jobs = parts(filled)
    assert "/runs/compare?ids=job-1,job-2,job-3" in head and "/api/experiments/exp.csv" in head
    assert "2,000" in figures and "1.50 – 1.70" in figures and "GSM8K" in figures
    assert (
        "Medusa for tiny" in curves
        and "τ by training tokens, measured" in curves
        and "[2000.0,1.6],[4000.0,1.7]" in curves
    )
    assert jobs.count('data-choose="job-') == 3 and 'href="/runs?id=job-1"' in jobs and "data-pick" not in jobs


def test_trainings_with_incomplete_requests_are_shown(filled: Settings) -> None:
    """Such as rows of another version, or of a deleted base."""
    with db.writing(filled) as session:
        session.get_one(Job, "job-1").request = {}
        session.get_one(Job, "job-2").request = {"method": "gone", "base_id": "gone", "settings": {"x": [1]}}
    sections = parts(filled)
    assert "Training runs" in sections[2]
    assert client(filled).get("/api/experiments/exp.csv").status_code == 200


def test_an_empty_experiment_says_what_to_do(home: Settings) -> None:
    with db.writing(home) as session:
        session.add(Experiment(id="exp", name="new"))
    html = "".join(parts(home))
    assert "No jobs yet" in html and "no training runs with results yet" in html
    with db.reading(home) as session:
        assert "Jobs</th>" in page.experiments_table(session)


def test_a_draft_depends_on_its_second_dataset(filled: Settings) -> None:
    with db.writing(filled) as session:
        second = Dataset(id="more", name="letters", kind="conversations", state="ready", rows=5)
        session.add(second)
        draft = session.get_one(Checkpoint, "draft-2")
        draft.config = {**draft.config, "more_dataset_ids": ["more"]}
        session.flush()
        assert changes.dependents(session, second) == ["the draft “two” trained on it"]


def test_a_secret_with_a_quote_stays_secret_and_cells_stay_apart(filled: Settings) -> None:
    secret = 'a"b\\c'
    with db.writing(filled) as session:
        row = session.get_one(Experiment, "exp")
        row.name = f"see {secret}"
        session.get_one(Job, "job-1").name = "https://host:8000"
        session.get_one(Checkpoint, "draft-1").name = "x@y"
        session.flush()
        lines = page.as_csv(session, row, filled.home, [secret]).splitlines()
    assert not any('a""b' in line for line in lines)
    first = next(line for line in csv.DictReader(lines) if line["job_id"] == "job-1")
    assert (first["job"], first["draft"]) == ("https://host:8000", "x@y")


def test_the_csv_has_a_line_an_evaluation_and_no_formula(filled: Settings) -> None:
    text = client(filled).get("/api/experiments/exp.csv").content.decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["job_id"] for row in rows] == ["job-1", "job-2", "job-3"]
    assert rows[1]["tau"] == "1.7" and rows[1]["setting.lr"] == "0.001" and rows[1]["tokens_seen"] == "4000.0"
    assert rows[2]["draft"] == f"'{FORMULA}" and rows[0]["experiment"] == f"'{FORMULA}"
    assert not re.search(r"(^|,)=", text, re.MULTILINE)


def test_the_csv_of_an_unknown_experiment_is_not_found(filled: Settings) -> None:
    response = client(filled).get("/api/experiments/nowhere.csv")
    assert response.status_code == 404 and "This experiment does not exist" in response.text
    with db.reading(filled) as session, pytest.raises(NotFound):
        row(session, Experiment, "experiment", "x" * 500)


def test_signatures_follow_the_rows(filled: Settings) -> None:
    def signatures() -> tuple[str, str]:
        with db.reading(filled) as session:
            return experiments.signature(session), experiments.row_signature(session, "exp")

    before = signatures()
    assert signatures() == before
    save(filled, Experiment, "experiment", "exp", FORMULA, "another note")
    noted = signatures()
    assert noted[0] != before[0] and noted[1] != before[1]
    page.remove(filled, "job-1")
    assert signatures()[1] != noted[1]
