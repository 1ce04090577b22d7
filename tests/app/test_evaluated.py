"""An evaluation's page: its figures, its worst prompts, and the run that a button starts to show their steps."""

from dataclasses import replace

import pytest

from app import turns
from app.pages import jobs as job_panel
from app.pages.evaluations import EvaluationPanel
from app.turns import PROMPT_NOT_STORED, run_again
from app.views import evaluation_view
from app.views.load_view import loads_view
from speculoos.errors import BadInput, NotFound
from speculoos.settings import Settings
from tracking import jobs, reports, runs
from tracking.db import reading, writing
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job
from workers.jobs.requests import ReplayRequest

NASTY = "<img src=x onerror=alert(1)> ${alert(1)}"
PROMPTS = [
    {"id": "q1", "turn": 0, "category": "math", "tau": 1.1, "tokens": 60, "steps": 50,
     "messages": [{"role": "user", "content": NASTY + " why" * 100}]},
    {"id": "q2", "turn": 1, "category": "", "tau": 2.5, "tokens": 50, "steps": 20},
]  # fmt: skip
RESULT = {
    "per_prompt": PROMPTS,
    "max_tokens": 64,
    "lengths": [5, 3, 2],
    "by_position": [{"from": 0, "steps": 5, "tau": 2.0}, {"from": 16, "steps": 5, "tau": 1.5}],
    "by_class": [{"class": "code", "tokens": 40, "drafted": 30}],
}


@pytest.fixture
def home(home: Settings) -> Settings:
    """An evaluation of heads; no inference server answers."""
    settings = replace(home, inference_url="http://127.0.0.1:9")
    with writing(settings) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="", state="ready"))
        session.flush()
        session.add(Checkpoint(id="heads", name="heads", method="medusa", state="ready", base_id="base"))
        session.flush()
        columns = {"config": {"drafting": {"tree": [[0, 0]]}}, "temperature": 0.7, "top_p": 0.9, "suite": "built_in"}
        links = {"base_id": "base", "checkpoint_id": "heads", "state": "ready"}
        session.add(Evaluation(id="one", name="one", result=RESULT, speedup_high=0.8, **links, **columns))
    return settings


def row_of(home: Settings) -> Evaluation:
    with reading(home) as session:
        return session.get_one(Evaluation, "one")


def test_a_prompt_is_run_again_as_it_was_asked_with_the_models_probabilities(home):
    chat, error = run_again(home, "one", "0")
    assert "does not respond" in error
    with reading(home) as session:
        (run,) = runs.group_runs(session, chat)
    assert (run.model, run.request["messages"]) == ("tiny@heads", PROMPTS[0]["messages"])
    assert run.request["speculation"] == {"tree": [[0, 0]], "probabilities": True}
    assert {key: run.request[key] for key in ("max_tokens", "temperature", "top_p")} == {
        "max_tokens": 64,
        "temperature": 0.7,
        "top_p": 0.9,
    }


def test_a_question_after_a_prompt_of_several_turns_sees_all_of_them(home):
    conversation = [("system", "Be brief."), ("user", "one?"), ("assistant", "1"), ("user", "two?")]
    messages = [{"role": role, "content": content} for role, content in conversation]
    with writing(home) as session:
        session.get_one(Evaluation, "one").result = {"per_prompt": [{**PROMPTS[0], "messages": messages}]}
    chat, _ = run_again(home, "one", "0")
    with writing(home) as session:
        (stored,) = runs.group_runs(session, chat)
        stored.text, stored.state = "2", "SUCCEEDED"
    followed = turns.next_turn(home, chat, "tiny@heads", "three?", turns.TurnOptions())[0]
    expected = [*messages, {"role": "assistant", "content": "2"}, {"role": "user", "content": "three?"}]
    assert followed.request["messages"] == expected
    edited = turns.next_turn(home, chat, "tiny@heads", "two!", turns.TurnOptions(system="Be long."), after="")[0]
    assert [m["content"] for m in edited.request["messages"]] == ["Be long.", "one?", "1", "two!"], "another version"
    new = turns.next_turn(home, "", "tiny@heads", "alone?", turns.TurnOptions())[0]
    assert [m["content"] for m in new.request["messages"]] == ["alone?"]


@pytest.mark.parametrize("number", ["1", "2", "-1", "x", ""])
def test_a_prompt_that_is_not_stored_is_refused(home, number):
    with pytest.raises(BadInput, match=PROMPT_NOT_STORED):
        run_again(home, "one", number)


def test_a_deleted_evaluation_or_model_is_refused(home):
    with writing(home) as session:
        session.get_one(Evaluation, "one").base_id = None
    for row_id in ("one", "gone"):
        with pytest.raises(NotFound, match="gone|was deleted"):
            run_again(home, row_id, "0")


def test_the_page_shows_an_error_and_opens_nothing(home):
    class Click:
        wanted = "0"

    message, target = EvaluationPanel.show_steps(type("Page", (), {"settings": home})(), "one", Click())
    assert "sp-bad" in message and target == ""


def test_the_page_shows_where_the_draft_does_well_and_no_prompt_as_markup(home):
    with reading(home) as session:
        html = evaluation_view.view(session, session.get_one(Evaluation, "one"))
    for text in ("Tokens per step", "1 token", "by position in the response", "0 – 15", "from 16", "code (40)", "75%"):
        assert text in html
    assert "<img" not in html and "${" not in html
    assert html.count("data-make=") == 1, "only what is kept can be run again"
    assert html.index("1.10") < html.index("2.50") and "turn 2" in html
    assert "Plain decoding is faster on this machine" in html and "busy" not in html
    with writing(home) as session:
        session.get_one(Evaluation, "one").result = {**RESULT, "busy": f"The machine was busy. {NASTY}"}
        html = evaluation_view.view(session, session.get_one(Evaluation, "one"))
    assert "The machine was busy." in html and "<img" not in html


def test_an_evaluation_without_any_of_it_shows_nothing(home):
    assert evaluation_view.breakdown(Evaluation(result={}, base_id="base")) == ""
    assert evaluation_view.breakdown(Evaluation(result=None, base_id="base")) == ""


def test_the_page_says_what_is_not_known_and_why(home):
    result = {"mean_accepted_length": 2.0, "per_prompt": PROMPTS}
    links = {"base_id": "base", "checkpoint_id": "heads", "state": "ready"}
    served = evaluation_view.breakdown(Evaluation(result=result, source="team", **links))
    assert evaluation_view.OF_SERVERS in served
    assert served.count("data-make=") == 1 and evaluation_view.ANSWERED_HERE in served
    unknown = evaluation_view.breakdown(Evaluation(result=result, source="team", state="ready"))
    assert "Worst prompts" in unknown and "data-make" not in unknown, "whose model is not here"
    assert evaluation_view.OF_SERVERS not in evaluation_view.breakdown(row_of(home))


def test_a_running_evaluation_shows_each_question_as_it_comes(home):
    figures = {"mean_accepted_length": 2.125, "tokens_per_second": 30.0, "plain_tokens_per_second": 20.0}
    with writing(home) as session:
        request = {"evaluation_id": "two", "checkpoint_id": "heads", "base_id": "base"}
        job = jobs.create(session, kind="evaluate", queue="gpu", request=request, name="two")
        session.add(Evaluation(id="two", name="two", state="pending", base_id="base", job_id=job.id))
        jobs.claim(session, job.id, "worker", 30)
        assert "report follows when all" in job_panel.no_charts(session.get_one(Job, job.id))
        assert evaluation_view.report_of(session, job) == ""
        first = {"question": NASTY, "category": "math", "end_to_end_speedup": 1.5, **figures}
        old, new = (2, {"question": "again", **figures}), (2, {"question": "q2", **figures})
        reports.write(session, job.id, 1, reports.JobReport(samples=[(1, first), old, new]))
        page = evaluation_view.view(session, session.get_one(Evaluation, "two"))
        assert evaluation_view.report_of(session, job) in page
    assert page.index("q2") < page.index("math") and "again" not in page, "the newest first, of each the last"
    for text in ("2.12", "30.0", "20.0", "1.50", "Results so far", "Running"):
        assert text in page, text
    assert "<img" not in page and "sp-tile" not in page, "no report yet"


def test_a_replay_has_the_report_of_an_evaluation_on_its_jobs_page_without_buttons(home):
    replayed = {**RESULT, "mean_accepted_length": 2.5, "mean_accepted_length_interval": [2.0, 3.0]}
    replayed |= {"replayed": {"file": NASTY, "rows": 12}, "projected_speedup": 1.7}
    with writing(home) as session:
        links = {"base_id": "base", "checkpoint_id": "heads", "state": "ready"}
        session.add(Dataset(id="said", name="-message", kind="conversations", state="ready"))
        request = ReplayRequest(base_id="base", checkpoint_id="heads", dataset_id="said", limit=12).to_json()
        session.add(Evaluation(id="two", name="two", result=replayed, config=request, **links))
        job = Job(kind="replay", queue="gpu", name="two", request={"evaluation_id": "two"})
        session.add(job)
        page = evaluation_view.view(session, session.get_one(Evaluation, "two"))
        job_page = evaluation_view.report_of(session, job)
    for html in (page, job_page):
        for text in (
            "2.00 – 3.00 (95 %)",
            "1.70 ×",
            "by position in the response",
            "Drafted, by kind",
            "Worst prompts",
        ):
            assert text in html, text
        assert "<img" not in html and "Speedup" not in html
        assert "speculoos replay run --draft tiny@heads --limit 12 -- -message" in html
    assert page.count("data-make=") == 1 and "data-make" not in job_page


def side(tokens_per_second: float, tau: float | None = None, failed: int = 0) -> dict:
    times = {"ttft": [101.26, 250.0], "inter_token": [12.5, 20.0], "acceptance_by_depth": []}
    return {
        "tokens_per_second": tokens_per_second,
        "mean_accepted_length": tau,
        "requests": 8,
        "failed": failed,
    } | times


LOADS = [
    {"concurrency": 1, "drafted": side(40.0, 2.1), "plain": side(20.0), "speedup": 2.0, "speedup_interval": [1.8, 2.2]},
    {"concurrency": 16, "drafted": side(90.0, 2.0, 3), "plain": side(100.0), "speedup": 0.9,
     "speedup_interval": [0.85, 0.95]},
]  # fmt: skip


def test_loads_are_a_chart_a_table_and_a_verdict(home):
    row = row_of(home)
    assert loads_view({}) == loads_view({"loads": []}) == ""
    row.result = {**RESULT, "loads": LOADS}
    with reading(home) as session:
        html = evaluation_view.report(session, row)
    assert "Decoding with the draft is slower at 16 concurrent requests" in html
    assert "Throughput by load" in html and "with the draft" in html and "without a draft" in html
    assert (
        "2.00 ×" in html
        and "1.80 – 2.20 × (95 %)" in html
        and "101 ms" in html
        and "p95 250 ms" in html
        and "12.5 ms" in html
    )
    assert "3 failed" in html
    assert "Decoding with the draft is faster at every load tried." in loads_view({"loads": LOADS[:1]})
    unclear = {**LOADS[1], "speedup_interval": [0.9, 1.1]}
    assert "at 16 concurrent requests the interval contains 1" in loads_view({"loads": [LOADS[0], unclear]})
    alone = {**LOADS[0], "plain": None, "speedup": None, "speedup_interval": None}
    refused = {**alone, "concurrency": 64, "drafted": None}
    html = loads_view({"loads": [alone, refused]})
    assert "all requests failed" in html and "without a draft" not in html and "Drafting" not in html


def test_categories_show_acceptance_by_depth(home):
    row = row_of(home)
    figures = {"mean_accepted_length": 2.0, "prompts": 4}
    row.result = {"per_category": {"math": {**figures, "acceptance_by_depth": [0.713, 0.5]}, "<b>": figures}}
    html = evaluation_view.categories(row)
    assert "71% · 50%" in html and "&lt;b&gt;" in html and "Acceptance by depth" in html
