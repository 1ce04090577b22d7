"""A tree is tuned from what a draft got right on this machine, stored with its checkpoint and used for drafting."""

import json

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.target import Target
from evaluation.questions import built_in
from evaluation.tuning import tune
from models.base import load_base
from models.checkpoints import load_draft, save_draft, update_draft_config, verify_sums
from models.dflash import DFlashDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.peagle import PEagleDraft
from models.standalone import StandaloneDraft
from speculoos.reporting import SilentReporter
from tests.decoding.conftest import run


def draft_for(base, method: str):
    torch.manual_seed(0)
    if method == "medusa":
        return MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2), base)
    if method == "dflash":
        return DFlashDraft.from_base(base, block_size=4).eval()
    if method == "draft":
        return StandaloneDraft.from_base(base, base.num_layers)
    return {"eagle3": Eagle3Draft, "peagle": PEagleDraft}[method].from_base(base)


@pytest.mark.parametrize("method", ["medusa", "eagle3", "peagle", "dflash", "draft"])
def test_a_tuned_draft_can_be_drafted_with(tiny_base, method):
    base = load_base(tiny_base)
    draft = draft_for(base, method)
    tuned = tune(base, draft, built_in(1), SilentReporter(), max_tokens=16)
    assert bool(tuned.drafting) == (tuned.plan.nodes > 0)
    assert tuned.plan.verdict and tuned.plan.expected_tau >= 1.0
    target = Target(load_base(tiny_base), 128)
    run(target, make_drafter(target, draft_for(target.base, method), tuned.drafting), list(range(9)), max_tokens=8)


def test_no_expected_speedup_is_above_tau_whatever_a_busy_machine_lets_be_measured(tiny_base, monkeypatch):
    disturbed = {1: 900.0, 2: 800.0, 4: 700.0, 8: 600.0, 16: 500.0, 32: 450.0, 64: 400.0}
    monkeypatch.setattr("evaluation.tuning.measure_forward", lambda target, **_: disturbed)
    base = load_base(tiny_base)
    plan = tune(base, draft_for(base, "draft"), built_in(2), SilentReporter(), max_tokens=24).plan
    assert plan.expected_tau > 1.5, "it is the base itself"
    assert plan.expected_speedup <= plan.expected_tau
    assert plan.sizes and all(size.speedup <= size.expected_tau for size in plan.sizes)


def test_a_long_first_question_is_cut_to_the_bases_context(tiny_base):
    base = load_base(tiny_base)
    long = {"id": "long", "messages": [{"role": "user", "content": "the quick brown fox " * 400}]}
    assert tune(base, draft_for(base, "medusa"), [long], SilentReporter(), max_tokens=8).plan.verdict


def test_a_tree_kept_with_a_checkpoint_is_used_unless_another_is_asked_for(tmp_path, tiny_base):
    base = load_base(tiny_base)
    folder = save_draft(tmp_path / "draft", draft_for(base, "medusa"), {"base": "tiny"})
    update_draft_config(folder, drafting={"tree": [[0], [1]]}, tuning={"expected_tau": 1.5})
    verify_sums(folder)
    assert json.loads((folder / "config.json").read_text())["tuning"] == {"expected_tau": 1.5}
    draft, target = load_draft(folder, base), Target(base, 64)
    assert make_drafter(target, draft).growth.nodes == 3
    assert make_drafter(target, draft, {"tree": [[0, 0]]}).growth.max_depth == 2
    assert make_drafter(target, draft, {"drafter": "none"}).name == "none"
