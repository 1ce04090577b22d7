"""Beside a packed base every draft is packed too, and nothing but the speed changes."""

import pytest
import torch

from decoding import fast_eagle
from decoding.drafters import make_drafter
from decoding.fast import fast_target
from decoding.packed import PackedLinear, packing_works
from decoding.target import Target
from models.base import Base, load_base
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.standalone import StandaloneDraft
from models.tiny import make_tiny_base
from tests.decoding.conftest import run

TREE = [[0, 0, 0], [0, 1], [1, 0], [1, 1]]
PROMPT = list(range(20, 50))


def medusa(base: Base, **options) -> MedusaHeads:
    return MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 3, **options), base)


def made(name: str, base: Base):
    """A draft for `base` by name, its random parts the same each time."""
    torch.manual_seed(0)
    if name == "eagle":
        return EagleDraft.from_base(base)
    if name == "eagle3":
        return Eagle3Draft.from_base(base, draft_ids=torch.arange(0, base.vocab_size, 2))
    if name == "draft":
        return StandaloneDraft.from_base(base, 2)
    return medusa(base, medusa_tie_lm_head=name == "medusa-tied")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", ["medusa", "medusa-tied", "eagle", "eagle3", "draft"])
def test_a_packed_draft_drafts_the_same_trees(tmp_path, name, tied, monkeypatch):
    monkeypatch.setattr(fast_eagle, "drafting_dtype", lambda draft: torch.float32)
    make_tiny_base(tmp_path, tie_word_embeddings=tied)
    slow_base, fast_base = load_base(tmp_path), load_base(tmp_path)
    slow_draft, fast_draft = made(name, slow_base), made(name, fast_base)
    slow, fast = Target(slow_base, 200), fast_target(fast_base, 200)
    for _ in range(2):  # a second drafter of the same draft finds it packed already
        expected = run(slow, make_drafter(slow, slow_draft, {"tree": TREE}), PROMPT, max_tokens=32)
        steps = run(fast, make_drafter(fast, fast_draft, {"tree": TREE}), PROMPT, max_tokens=32)
        assert [s.tokens for s in steps] == [s.tokens for s in expected]
        assert [s.drafted.tokens for s in steps] == [s.drafted.tokens for s in expected]
        slow.rewind(0)
        fast.rewind(0)


def test_the_parts_a_draft_owns_are_packed(tiny_base):
    base = load_base(tiny_base)
    heads = medusa(base)
    make_drafter(fast_target(base, 64), heads)
    packed = [m for m in heads.modules() if isinstance(m, PackedLinear)]
    assert len(packed) == (6 if packing_works(torch.float32) else 0)


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_a_draft_in_bfloat16_changes_no_token_of_a_float32_base(tiny_base, name):
    base = load_base(tiny_base)
    draft = made(name, base)
    target = fast_target(base, 200)
    drafter = make_drafter(target, draft, {"tree": TREE})
    native = torch.cpu._is_avx512_bf16_supported() and packing_works(torch.bfloat16)
    assert drafter.draft.dtype == (torch.bfloat16 if native else torch.float32)
    plain = run(target, make_drafter(target), PROMPT, max_tokens=32)
    target.rewind(0)
    steps = run(target, drafter, PROMPT, max_tokens=32)
    assert [t.id for s in steps for t in s.tokens] == [t.id for s in plain for t in s.tokens]
