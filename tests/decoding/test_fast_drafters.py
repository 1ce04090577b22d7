"""With a packed base every draft is packed too; only the speed changes."""

from functools import cache

import pytest
import torch

from decoding.drafters import make_drafter, runners
from decoding.target import Target, fast_target
from models.base import LoadedBase, load_base
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.peagle import PEagleDraft
from models.runtime.linear import PackedLinear, packing_works
from models.standalone import StandaloneDraft
from speculoos.errors import BadInput, Unsupported
from tests.decoding.conftest import run
from tests.tiny import make_tiny_base

TREE = [[0, 0, 0], [0, 1], [1, 0], [1, 1]]
PROMPT = list(range(20, 50))


def medusa(base: LoadedBase, **options) -> MedusaHeads:
    return MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 3, **options), base)


def make_draft(name: str, base: LoadedBase):
    """The draft `name` for `base`, with the same random weights each time."""
    torch.manual_seed(0)
    if name == "eagle":
        return EagleDraft.from_base(base)
    if name == "eagle3":
        return Eagle3Draft.from_base(base, draft_ids=torch.arange(0, base.vocab_size, 2))
    if name == "peagle":
        return PEagleDraft.from_base(base, draft_ids=torch.arange(0, base.vocab_size, 2))
    if name.startswith("dflash"):
        ids = torch.arange(0, base.vocab_size, 2) if name == "dflash-small" else None
        return DFlashDraft.from_base(base, ids, dflash_num_layers=2)
    if name == "draft":
        return StandaloneDraft.from_base(base, 2)
    return medusa(base, medusa_tie_lm_head=name == "medusa-tied")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    """folder_of(family): a tiny Phi, or a llama whose head is tied or not."""

    @cache
    def make(family: str):
        kind = "phi" if family == "phi" else "llama"
        return make_tiny_base(tmp_path_factory.mktemp(family), kind, tie_word_embeddings=family == "tied")

    return make


@pytest.mark.parametrize(
    ("name", "family"),
    [*((name, "untied") for name in ("medusa", "medusa-tied", "eagle", "eagle3", "peagle", "draft"))]
    + [("dflash", "untied"), ("dflash-small", "untied")]
    + [("medusa-tied", "tied"), ("draft", "tied"), ("medusa", "phi"), ("eagle", "phi"), ("eagle3", "phi")]
    + [("dflash", "phi"), ("dflash-small", "phi"), ("dflash", "tied")],
)
def test_a_packed_draft_drafts_the_same_trees(folder_of, name, family, monkeypatch):
    """Phi's head has a bias."""
    monkeypatch.setattr(
        runners, "drafting_dtype", lambda draft: torch.float32
    )  # as the other draft: rounding could change a tree
    slow_base, fast_base = load_base(folder_of(family)), load_base(folder_of(family))
    slow_draft, fast_draft = make_draft(name, slow_base), make_draft(name, fast_base)
    slow, fast = Target(slow_base, 200), fast_target(fast_base, 200)
    for _ in range(2):  # a second drafter of the same draft finds it packed already
        expected = run(slow, make_drafter(slow, slow_draft, {"tree": TREE}), PROMPT, max_tokens=20)
        steps = run(fast, make_drafter(fast, fast_draft, {"tree": TREE}), PROMPT, max_tokens=20)
        assert [s.tokens for s in steps] == [s.tokens for s in expected]
        assert [s.draft_record.tokens for s in steps] == [s.draft_record.tokens for s in expected]
        slow.rewind(0)
        fast.rewind(0)


def test_the_parts_a_draft_owns_are_packed(tiny_base):
    base = load_base(tiny_base)
    heads = medusa(base)
    make_drafter(fast_target(base, 64), heads)
    packed = [m for m in heads.modules() if isinstance(m, PackedLinear)]
    assert len(packed) == (6 if packing_works(torch.float32) else 0)


@pytest.mark.parametrize("name", ["eagle", "eagle3", "peagle", "dflash"])
def test_a_draft_in_bfloat16_changes_no_token_of_a_float32_base(tiny_base, name):
    base = load_base(tiny_base)
    draft = make_draft(name, base)
    target = fast_target(base, 200)
    drafter = make_drafter(target, draft, {"tree": TREE})
    native = torch.cpu._is_avx512_bf16_supported() and packing_works(torch.bfloat16)
    assert drafter.draft.dtype == (torch.bfloat16 if native else torch.float32)
    plain = run(target, make_drafter(target), PROMPT, max_tokens=32)
    target.rewind(0)
    steps = run(target, drafter, PROMPT, max_tokens=32)
    assert [t.id for s in steps for t in s.tokens] == [t.id for s in plain for t in s.tokens]


@pytest.mark.parametrize("kind", [EagleDraft, Eagle3Draft, PEagleDraft])
@pytest.mark.parametrize("make_target", [Target, fast_target])
def test_a_long_prompt_in_parts_gives_the_same_drafts(kind, make_target, tiny_base, monkeypatch):
    def draft_tokens(prefill_tokens: int) -> list:
        monkeypatch.setattr("decoding.drafters.eagle.MAX_PREFILL_TOKENS", prefill_tokens)
        base = load_base(tiny_base)
        torch.manual_seed(0)
        draft = kind.from_base(base)
        target = make_target(base, 200)
        drafter = make_drafter(target, draft, {"tree": TREE})
        return [step.draft_record.tokens for step in run(target, drafter, PROMPT, max_tokens=16)]

    assert draft_tokens(7) == draft_tokens(1024)


def test_a_packed_draft_beside_a_plain_target_is_refused(tiny_base):
    base = load_base(tiny_base)
    draft = EagleDraft.from_base(base)
    make_drafter(fast_target(base, 64), draft)
    with pytest.raises(Unsupported, match="load it again"):
        make_drafter(Target(load_base(tiny_base), 64), draft)


@pytest.mark.parametrize("options", [{"tree": [[100]]}, {"depth": 1, "top_k": 101, "nodes": 4}])
def test_more_candidates_than_a_draft_knows_are_refused(options, tiny_base):
    base = load_base(tiny_base)
    ids = torch.arange(100)
    with pytest.raises(BadInput, match="the 101 best tokens, but this draft has 100"):
        make_drafter(Target(base, 64), Eagle3Draft.from_base(base, draft_ids=ids), options)


def test_sampling_children_keeps_the_tuned_tree(tiny_base):
    base = load_base(tiny_base)
    draft = EagleDraft.from_base(base)
    draft.drafting = {"tree": TREE}
    tuned = make_drafter(Target(base, 64), draft, {"sample": True})
    assert tuned.sample and tuned.growth.shape == make_drafter(Target(base, 64), draft).growth.shape
