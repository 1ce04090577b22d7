"""The jobs `plan` and `replay`: what they leave in rows, and what is said of figures from elsewhere that are wrong."""

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
    found = measure.run_plan(request, context)
    assert found["shapes"] == [] and [row["layers"] for row in found["standalone"]] == [1, 2]
    assert "Standalone drafts" in found["verdict"] and json.dumps(found)
    with db.reading(context.settings) as rows:
        assert rows.get_one(Job, context.job_id).name == f"Plan {base.name}"


def test_figures_from_elsewhere_are_checked_first(begin, tiny_base):  # noqa: F811
    base = fetched(begin, tiny_base)
    request, context = begin(PlanRequest(base.id, costs={"target_ms": {"1": {"1": "x"}}}))
    with pytest.raises(BadInput, match="target_ms"):
        measure.run_plan(request, context)


def test_a_data_set_s_answers_are_replayed_with_a_checkpoint(begin, tiny_base, tmp_path):  # noqa: F811
    """The figures are an evaluation's, and the first answer is a chat in the usual records."""
    base = fetched(begin, tiny_base)
    loaded = load_base(tiny_base)
    torch.manual_seed(0)
    heads = MedusaHeads.from_base(MedusaConfig(loaded.hidden_size, loaded.vocab_size, 2), loaded)
    folder = save_draft(tmp_path / "heads", heads, {"base": base.name})
    said = tmp_path / "said.jsonl"
    record(loaded, 16, [{**row, "messages": row["messages"][:1]} for row in built_in(2)], said)
    request, context = begin(ImportAnswered(path=str(said), base_id=base.id))
    import_prompts.run(request, context)
    with db.writing(context.settings) as rows:
        draft = Checkpoint(name="heads", method="medusa", state="ready", base_id=base.id, path=str(folder))
        rows.add(draft)
    asked = ReplayRequest(base.id, draft.id, request.dataset_id, limit=2, show=1, drafting={"tree": [[0, 0], [1]]})
    request, context = begin(asked)
    found = measure.run_replay(request, context)
    with db.reading(context.settings) as rows:
        row = rows.get_one(Evaluation, request.evaluation_id)
        assert (row.state, row.checkpoint_id, row.result["replayed"]["rows"]) == ("ready", draft.id, 2)
        assert row.result["mean_accepted_length"] == found["tau"] >= 1.0
        (run,) = group_runs(rows, found["chats"][0])
        assert steps_after(rows, run.id)[0]["kind"] == "prefill"
        assert "heads on said" in rows.get_one(Job, context.job_id).name
