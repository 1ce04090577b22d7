"""The Tree tab of a checkpoint: the result of a tuning, and the job that the form starts."""

import gradio as gr
import pytest

from app.pages import jobs as job_panel
from app.views import checkpoint_rows, tree_view
from app.views.checkpoint_rows import signature
from app.views.tree_view import TreeForm, tuning_part
from app.widgets.elements import hidden
from speculoos.settings import Settings
from tracking import jobs
from tracking.db import reading, writing
from tracking.tables import Base, Checkpoint, Job

TUNED = {
    "verdict": "4 nodes, depth 2: expected τ 2.1, 1.54 × the baseline.",
    "plain_is_faster": False,
    "drafting": {"tree": [[0], [0, 0], [1]]},
    "nodes": 4,
    "depth": 2,
    "expected_tau": 2.1,
    "expected_speedup": 1.54,
    "sizes": [[2, 1.6, 1.3], [4, 2.1, 1.54]],
    "by_rank": [[0.6, 0.2], [0.5]],
    "forward_ms": {"1": 10.0, "4": 12.0, "64": 60.0},
    "draft_ms": [1.0, 2.0],
    "other_ms": 1.0,
    "machine": {"processor": "A processor", "device": "cpu"},
    "dtype": "bfloat16",
    "kept": True,
    "at": "2026-11-23T00:00:00+00:00",
}
BUSY = "The machine was busy: other programs took 50% of its processor time meanwhile."


@pytest.fixture
def home(home: Settings) -> Settings:
    with writing(home) as session:
        card = {"parameters": 10**6}
        session.add(Base(id="base", name="tiny", source="folder", location="", state="ready", card=card))
        session.flush()
        session.add(Checkpoint(id="heads", name="heads", method="medusa", state="ready", base_id="base", path="/x"))
    return home


def set_figures(home: Settings, **values) -> None:
    with writing(home) as session:
        session.get_one(Checkpoint, "heads").figures = values


def render(home: Settings, draw) -> str:
    with reading(home) as session:
        return draw(session, session.get_one(Checkpoint, "heads"))


def test_a_tuning_is_shown_with_its_tree_machine_and_precision(home):
    set_figures(home, tuning=TUNED["verdict"], tuned=TUNED)
    html = render(home, lambda _, row: tree_view.tuning_result(row))
    for text in ("Tuned: 4 nodes", "A processor", "bfloat16", "2026-11-23", "2.10", "1.54 × the baseline", "sp-chart"):
        assert text in html
    assert "tree of 3 choices" in html and "sp-good" in html and "1.54 × baseline at 4 nodes" in html
    assert "now uses this tree" in html
    intervals = {"expected_tau_interval": [1.9, 2.3], "expected_speedup_interval": [1.4, 1.62]}
    set_figures(home, tuning=TUNED["verdict"], tuned={**TUNED, **intervals, "busy": BUSY, "kept": False})
    html = render(home, lambda _, row: tree_view.tuning_result(row))
    assert "The machine was busy" in html and "sp-good" not in html, "no green tick for a loaded machine"
    assert "2.10, 1.90 – 2.30 (95 %)" in html and "1.40 – 1.62" in html
    assert "The tree was not saved: the draft" in html


def test_a_dynamic_tree_has_one_depth_on_the_page(home):
    """The option `depth` does not count the first level."""
    dynamic = {"drafting": {"depth": 2, "top_k": 8, "nodes": 8}, "nodes": 8, "depth": 3}
    set_figures(home, tuning="8 nodes, depth 3: …", tuned={**TUNED, **dynamic})
    html = render(home, lambda _, row: tree_view.tuning_result(row))
    assert html.count("depth 3") == 2 and "depth 2" not in html


def test_a_tuning_s_job_says_that_the_machine_was_busy_and_what_was_kept(home):
    with writing(home) as session:
        job = Job(kind="tune", queue="gpu", name="t", state="SUCCEEDED", request={"checkpoint_id": "heads"})
        job.result = {**TUNED, "busy": BUSY}
        session.add(job)
        session.flush()
        html = job_panel.status_line(session, job)
        assert "The machine was busy" in html and "sp-warn" in html and "sp-good" not in html
        assert "now uses this tree" in html
        job.kind, job.result = "plan", {"busy": BUSY}
        assert "sp-good" not in job_panel.status_line(session, job)


def test_where_plain_decoding_is_faster_the_page_says_so_first(home):
    set_figures(home, tuning="Plain …", tuned={**TUNED, "plain_is_faster": True, "drafting": {}})
    assert "Plain decoding is faster on this machine" in render(home, lambda _, row: tree_view.tuning_result(row))
    assert "Tuning found no tree with which this draft is faster than plain decoding on this machine." in render(
        home, checkpoint_rows.head
    )


def test_a_tuning_of_an_earlier_version_shows_only_its_verdict(home):
    set_figures(home, tuning="8 nodes, depth 3: …")
    assert "Tuned: 8 nodes" in render(home, lambda _, row: tree_view.tuning_result(row))
    set_figures(home)
    assert "Not tuned yet" in render(home, lambda _, row: tree_view.tuning_result(row))


def test_the_form_says_time_and_command_and_queues_the_job(home):
    with gr.Blocks():
        form = TreeForm(home, hidden("chosen")).form
    html = form.review_now("", "heads", "bfloat16", False)
    assert "speculoos tune tiny@heads --dtype bfloat16 --no-keep" in html and "about" in html
    with reading(home) as session:
        before = signature(session)
    message, url = form.submit("", "heads", "", True)
    assert message == "" and url.startswith("/runs?id=")
    with reading(home) as session:
        assert "“Tune tiny@heads” is queued." in tuning_part(session, session.get_one(Checkpoint, "heads"))
    with writing(home) as session:
        (job,) = session.query(Job).all()
        assert (job.kind, job.request["checkpoint_id"], job.request["keep"]) == ("tune", "heads", True)
        assert job.name == "Tune tiny@heads"
        jobs.claim(session, job.id, "worker", 30)
        jobs.succeed(session, job.id, 1, TUNED)
        assert signature(session) != before, "the page is drawn anew"
        assert "is queued" not in tuning_part(session, session.get_one(Checkpoint, "heads"))
    assert "does not exist" in form.submit("", "gone", "", True)[0]
    assert "does not exist" in form.review_now("", "gone", "", True)
    assert "Precision" in form.review_now("", "heads", "int3", True)
