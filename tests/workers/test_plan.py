"""The jobs `plan` and `replay`: the rows they write, and the check of costs that were measured elsewhere."""

import json

import pytest
import torch

from evaluation.questions import built_in
from models.base import load_base
from models.checkpoints import save_draft
from models.medusa import MedusaConfig, MedusaHeads
from speculoos.errors import BadInput
from tests.tools.recorded import record
from tests.workers.test_bodies import begin, fetched  # noqa: F401
from tracking import db
from tracking.runs import group_runs, steps_after
from tracking.tables import Checkpoint, Evaluation, Job
from workers.child.work import import_prompts, measure
from workers.jobs.requests import ImportAnswered, PlanRequest, ReplayRequest

pytestmark = pytest.mark.integration


def test_a_plan_of_a_base_alone_is_about_drafts_that_could_be_cut_from_it(begin, tiny_base):  # noqa: F811
    base = fetched(begin, tiny_base)
    request, context = begin(PlanRequest(base.id, limit=1, max_tokens=8, batches=[1, 2], layers=[1, 2]))
    result = measure.run_plan(request, context)
    assert result["shapes"] == [] and [row["layers"] for row in result["standalone"]] == [1, 2]
    assert "Standalone drafts" in result["verdict"] and json.dumps(result)
    with db.reading(context.settings) as session:
        assert session.get_one(Job, context.job_id).name == f"Plan {base.name}"


def test_figures_from_elsewhere_are_checked_first(begin, tiny_base):  # noqa: F811
    base = fetched(begin, tiny_base)
    request, context = begin(PlanRequest(base.id, costs={"target_ms": {"1": {"1": "x"}}}))
    with pytest.raises(BadInput, match="target_ms"):
        measure.run_plan(request, context)


def test_a_data_set_s_answers_are_replayed_with_a_checkpoint(begin, tiny_base, tmp_path):  # noqa: F811
    """The figures are stored as an evaluation, and the first answer as a chat."""
    base = fetched(begin, tiny_base)
    loaded = load_base(tiny_base)
    torch.manual_seed(0)
    heads = MedusaHeads.from_base(MedusaConfig(loaded.hidden_size, loaded.vocab_size, 2), loaded)
    folder = save_draft(tmp_path / "heads", heads, {"base": base.name})
    recording = tmp_path / "said.jsonl"
    record(loaded, 16, [{**question, "messages": question["messages"][:1]} for question in built_in(2)], recording)
    request, context = begin(ImportAnswered(path=str(recording), base_id=base.id))
    import_prompts.run(request, context)
    with db.writing(context.settings) as session:
        draft = Checkpoint(name="heads", method="medusa", state="ready", base_id=base.id, path=str(folder))
        session.add(draft)
    replay = ReplayRequest(base.id, draft.id, request.dataset_id, limit=2, show=1, drafting={"tree": [[0, 0], [1]]})
    request, context = begin(replay)
    result = measure.run_replay(request, context)
    with db.reading(context.settings) as session:
        evaluation = session.get_one(Evaluation, request.evaluation_id)
        assert (evaluation.state, evaluation.checkpoint_id, evaluation.result["replayed"]["rows"]) == (
            "ready",
            draft.id,
            2,
        )
        assert evaluation.result["mean_accepted_length"] == result["tau"] >= 1.0
        (run,) = group_runs(session, result["chats"][0])
        assert steps_after(session, run.id)[0]["kind"] == "prefill"
        assert "heads on said" in session.get_one(Job, context.job_id).name
