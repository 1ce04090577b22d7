"""Training continues from a published draft: it keeps the draft's shape and the tensors that are not trained."""

import pytest
import torch

from models.checkpoints import load_draft, load_draft_for_training
from models.methods import train_config
from speculoos.reporting import SilentReporter
from tests.formats.imports import writers
from tests.training.conftest import conversations, dataset, rows  # noqa: F401
from training.batches import collate
from training.eagle3 import Eagle3Method
from training.loop import Trainer

TABLE = writers.Random(9).matrix(writers.VOCABULARY, writers.HIDDEN) * 5
DRAFT_IDS = torch.arange(0, writers.VOCABULARY, 2)
DRAFTS = {
    "eagle": writers.eagle(layers=2, fc_bias=True, biases="qkv", table=TABLE),
    "eagle3": writers.eagle3(layers=2, fc_bias=True, table=TABLE, draft_ids=DRAFT_IDS.flip(0)),
    "peagle": writers.peagle(layers=2, table=TABLE, draft_ids=DRAFT_IDS.flip(0)),
    "medusa": writers.vllm_medusa(token_map=DRAFT_IDS),
}
NORMED = writers.eagle3(each=True, config={"fc_norm": True, "norm_output": True})


def settings(method: str, **values):
    sizes = {"max_steps": 12, "max_length": 256, "batch_tokens": 256, "eval_every": 0, "samples": 0}
    return train_config(method, **sizes, lr=3e-3, **values)


@pytest.mark.parametrize("published", [*DRAFTS.values(), NORMED], ids=[*DRAFTS, "eagle3-normed"])
def test_a_published_draft_learns_and_keeps_its_shape(published, imported, base, tiny_base, dataset, tmp_path):  # noqa: F811
    folder, report = imported(published)
    config = settings(report["method"], draft_path=str(folder))
    trainer = Trainer(config, tiny_base, dataset, tmp_path / "out", SilentReporter(), {})
    before = load_draft(folder, base)
    result = trainer.run()
    after = load_draft(result.folder, base)
    assert after.to_json() == before.to_json()
    changed = {n for n, value in after.state_dict().items() if not torch.equal(value, before.state_dict()[n])}
    frozen = {"embed_tokens.weight", "d2t", "t2d"} & set(after.state_dict())
    assert changed == set(after.state_dict()) - frozen


@torch.no_grad()
def test_a_deep_draft_learns_from_the_same_positions_as_a_flat_one(imported, base, conversations):  # noqa: F811
    """With one layer both ways of unrolling give the same loss; drafts with more layers need the deep way."""
    folder, _ = imported(writers.eagle3(draft_ids=DRAFT_IDS))
    method = Eagle3Method(settings("eagle3"), base, load_draft_for_training(folder, base, "eagle3"))
    features = method.features(collate(conversations[:4]))
    flat = method(features)
    method.multi_layer = True
    deep = method(features)
    assert torch.equal(flat.hits, deep.hits) and flat.loss_sums.abs().min() > 0
    torch.testing.assert_close(flat.loss_sums, deep.loss_sums, rtol=1e-5, atol=1e-5)


def test_tokens_in_any_order_map_to_the_draft_and_back(imported, base):
    """ModelOpt lists a draft vocabulary by frequency."""
    shuffled = DRAFT_IDS[torch.randperm(len(DRAFT_IDS), generator=torch.Generator().manual_seed(0))]
    folder, _ = imported(writers.eagle3(draft_ids=shuffled))
    draft = load_draft(folder, base)
    indices = torch.arange(len(shuffled))
    assert torch.equal(draft.to_target(indices), shuffled)
    assert torch.equal(draft.to_draft(shuffled), indices)
    assert draft.to_draft(torch.tensor([1, 3])).tolist() == [-100, -100]
