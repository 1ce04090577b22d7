"""Plans and replays: their forms, requests and reports, with names escaped."""

import json

import gradio as gr
import pytest

from app.pages.checkpoints import CheckpointPanel, recorded
from app.views import plan_view
from app.views.checkpoint_rows import evaluations_table, last_measured
from app.widgets.elements import hidden
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tests.tools.planned import cut, shape
from tracking import evaluations
from tracking.db import reading, writing
from tracking.jobs import create
from tracking.runs import group_runs, steps_after
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job
from workers.jobs.request import command_for
from workers.jobs.requests import PlanRequest, from_json

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"


RESULT = {
    "plain": shape("plain", "plain", 1.0, 1.0),
    "shapes": [shape("chain 3", "chain", 1.4, 0.7), shape("tree of 8", "tree", 1.6, 0.5)],
    "best": {"1": "tree of 8", "8": "plain"},
    "stops_at": 8,
    "standalone": [cut(2, 1.5, 0.42, 1.1, 2.2), cut(8, 9.0, None, 0.6, 0.9)],
    "acceptance": {"chain": [0.6], "verifications": 77},
    "machine": {"processor": HOSTILE},
    "basis": "measured here",
    "verdict": "One request at a time: tree of 8 is fastest.",
}


@pytest.fixture
def filled(home: Settings) -> Settings:
    """A base, a checkpoint and a finished plan of them."""
    with writing(home) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="/x", path="/x", state="ready"))
        session.flush()
        session.add(Checkpoint(id="heads", name="heads", method="medusa", state="ready", base_id="base"))
        job = create(session, kind="plan", queue="gpu", request=PlanRequest("base", "heads").to_json(), name=HOSTILE)
        job.id, job.state, job.result = "plan", "SUCCEEDED", RESULT
    return home


def test_a_plan_shows_its_verdict_its_surface_and_what_standalone_drafts_need(filled):
    with reading(filled) as session:
        html = plan_view.report(session.get(Job, "plan"))
    assert "tree of 8 is fastest" in html and "1.60×" in html and "<b>1.60×</b>" in html
    assert "not worthwhile" in html and "42%" in html and "77 verifications" in html
    assert "<img" not in html and "${" not in html


def test_a_plan_beside_other_programs_says_so_first_with_its_intervals(filled):
    busy = "The machine was busy: other programs took 50% of its processor time meanwhile."
    chain = shape("chain 3", "chain", 1.4, 0.7)
    chain["by_batch"]["1"] = {**chain["by_batch"]["1"], "speedup_interval": [1.1, 1.7]}
    with writing(filled) as session:
        session.get(Job, "plan").result = {**RESULT, "shapes": [chain], "busy": busy, "other_load": 0.5}
    with reading(filled) as session:
        html = plan_view.report(session.get(Job, "plan"))
    assert html.index("The machine was busy") < html.index("tree of 8 is fastest")
    assert "1.10 – 1.70×" in html and "50% of the CPU time" in html


def test_another_kind_of_job_is_no_plan(filled):
    with writing(filled) as session:
        session.get(Job, "plan").kind = "train"
    with reading(filled) as session:
        assert plan_view.report(session.get(Job, "plan")) == ""


def test_a_form_names_the_wrong_field():
    request = plan_view.plan_request("base", "", "8, 1,1", "2")
    assert (request.batches, request.layers, request.costs) == ([1, 8], [2], {})
    for values, field in (
        (("base", "", "1,x", "2"), "Batch sizes"),
        (("base", "", "1,65", "2"), "Batch sizes"),
        (("base", "", "9" * 5000, "2"), "Batch sizes"),
        (("base", "", "1", "0"), "Layers"),
    ):
        with pytest.raises(BadInput, match=field):
            plan_view.plan_request(*values)


def test_the_command_beside_the_button_is_the_request(home):
    request = PlanRequest(base_id="base", checkpoint_id="heads", batches=[1, 4], layers=[2], costs={"target_ms": {}})
    command = command_for(request, {"base": "tiny", "heads": "mine"})
    assert command == "speculoos plan tiny@mine --machine FILE --batches 1,4 --layers 2"
    assert from_json("plan", json.loads(json.dumps(request.to_json()))) == request


def test_the_form_offers_the_drafts_of_its_base(filled):
    with gr.Blocks():
        form = plan_view.PlanForm(filled, gr.Textbox())
    with reading(filled) as session:
        accordion, draft, _ = form.view(session, session.get(Base, "base"), {"checkpoint": "heads"})
        assert draft.choices == [("heads", "heads"), plan_view.no_draft()] and draft.value == "heads" and accordion.open
        assert not form.view(session, None, {})[0].visible


def test_a_replay_is_an_evaluation_but_no_measurement_and_its_outputs_are_chats(filled):
    summary = {"tokens": 3, "mean_accepted_length": 3.0, "notices": ["Replayed from said.jsonl"]}
    record = {"index": 0, "kind": "prefill", "tokens": [], "draft": {}, "accepted": [], "counted": False}
    with writing(filled) as session:
        session.add(
            Evaluation(name="real", state="ready", base_id="base", checkpoint_id="heads", result={"speedup": 1.5})
        )
        session.flush()
        result = {"mean_accepted_length": 9.0, evaluations.REPLAYED: {"file": "said.jsonl"}}
        evaluations.save_evaluation(session, "on said.jsonl", "base", "heads", {"replay": "said.jsonl"}, result)
        (run,) = evaluations.save_responses(
            session, "tiny@heads", [{"messages": [], "records": [record], "text": "text", "summary": summary}]
        )
        group = run.group_id
    with reading(filled) as session:
        assert last_measured(session, ["heads"])["heads"]["speedup"] == 1.5
        (chat,) = group_runs(session, group)
        assert (chat.state, chat.text, chat.kind) == ("SUCCEEDED", "text", "chat")
        assert len(steps_after(session, chat.id)) == 1


def test_recorded_answers_of_the_base_are_offered_and_replayed_by_a_job(filled):
    with writing(filled) as session:
        session.add(Base(id="other", name="other", source="folder", location="/y", path="/y", state="ready"))
        session.flush()
        for name, base in (("mine", "base"), ("theirs", "other")):
            session.add(Dataset(id=name, name=name, kind="conversations", state="ready", rows=3, base_id=base))
    with reading(filled) as session:
        assert [row_id for _, row_id in recorded(session, session.get(Checkpoint, "heads"))] == ["mine"]
    with gr.Blocks() as blocks:
        CheckpointPanel(filled, hidden("chosen"))
    replay = next(
        fn.fn for fn in blocks.fns.values() if fn.name == "submit" and fn.inputs[0].elem_id == "checkpoint-replay-name"
    )
    assert "choose a dataset" in replay("", "heads", None)[0]
    assert "does not exist" in replay("", "gone", "mine")[0]
    assert "/runs?id=" in replay("", "heads", "mine")[1]
    with reading(filled) as session:
        job = session.query(Job).filter(Job.kind == "replay").one()
        assert job.name == "Replay tiny@heads on mine"
        assert session.get(Evaluation, job.request["evaluation_id"]).state == "pending"
        command = command_for(from_json("replay", job.request), {"base": "tiny", "heads": "heads", "mine": "mine"})
        assert command == "speculoos replay run mine --draft tiny@heads --limit 50"


def test_replays_are_marked_where_a_checkpoint_s_evaluations_are_listed(filled):
    result = {"mean_accepted_length": 2.0, "projected_speedup": 1.4, evaluations.REPLAYED: {"file": HOSTILE, "rows": 7}}
    with writing(filled) as session:
        evaluations.save_evaluation(session, "tiny@heads on x", "base", "heads", {}, result)
    with reading(filled) as session:
        html = evaluations_table(session, session.get(Checkpoint, "heads"))
    assert "replay of 7 responses" in html and "1.40×" in html and "projected" in html and "<img" not in html
