"""A reused drafter and cache change neither drafts nor output, only how much is computed again."""

from pathlib import Path
from typing import Any

import pytest

from decoding.config import GenerateConfig
from decoding.drafters.base import ClientDrafter
from decoding.generate import generate
from decoding.step import Step
from models.base import load_base
from models.checkpoints import WEIGHTS, save_draft
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.peagle import PEagleDraft
from models.standalone import StandaloneDraft
from serving.catalog import ModelRef
from serving.pool import ModelPool, PooledModel
from speculoos.checksums import file_sha256

MAKERS: dict[str, Any] = {
    "medusa": lambda base: MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 3), base),
    "eagle": lambda base: EagleDraft.from_base(base),
    "eagle3": lambda base: Eagle3Draft.from_base(base),
    "peagle": lambda base: PEagleDraft.from_base(base),
    "dflash": lambda base: DFlashDraft.from_base(base),
    "draft": lambda base: StandaloneDraft.from_base(base, 2),
}


@pytest.fixture(params=MAKERS)
def ref(request: pytest.FixtureRequest, tiny_base: Path, tmp_path: Path) -> ModelRef:
    """A tiny random base with a fresh draft of each method."""
    base = load_base(tiny_base)
    folder = save_draft(tmp_path / "draft", MAKERS[request.param](base), {})
    sha256 = file_sha256(folder / WEIGHTS)
    return ModelRef("tiny@draft", str(tiny_base), "b" * 64, str(folder), sha256)


def steps(loaded: PooledModel, prompt: list[int], count: int) -> list[Step]:
    return list(
        generate(loaded.target, loaded.drafter({}), prompt, GenerateConfig(max_tokens=count, eos_ids=frozenset()))
    )


def trace(generated: list[Step]) -> list[Any]:
    return [(s.tokens, s.draft_record.tokens, s.draft_record.parents, s.accepted) for s in generated]


def token_ids(generated: list[Step]) -> list[int]:
    return [token.id for step in generated for token in step.tokens]


@pytest.mark.parametrize("first_tokens", [7, 8])
def test_a_second_turn_drafts_the_same_with_a_reused_and_a_new_drafter(ref: ModelRef, first_tokens: int) -> None:
    warm, cold = (ModelPool("cpu", "float32", 2**40) for _ in range(2))
    prompt = list(range(40, 60))
    first = token_ids(steps(warm.get(ref), prompt, first_tokens))
    second = [*prompt, *first, 70, 71, 72]
    assert warm.get(ref).drafter({}) is warm.get(ref).drafter({})
    reused = steps(warm.get(ref), second, 16)
    assert trace(reused) == trace(steps(cold.get(ref), second, 16))


def test_another_text_in_between_does_no_harm(ref: ModelRef) -> None:
    warm, cold = (ModelPool("cpu", "float32", 2**40) for _ in range(2))
    prompt = list(range(40, 60))
    first = token_ids(steps(warm.get(ref), prompt, 12))
    list(
        generate(
            warm.get(ref).target, warm.get(ref).drafter({"drafter": "none"}), [5, 6, 7], GenerateConfig(max_tokens=9)
        )
    )
    second = [*prompt, *first, 70]
    assert trace(steps(warm.get(ref), second, 16)) == trace(steps(cold.get(ref), second, 16))


@pytest.mark.parametrize("right", [0, 6])
def test_draft_tokens_of_a_client_before_a_draft_change_no_token(ref: ModelRef, right: int) -> None:
    """What comes after them is drafted as if the draft had proposed them itself."""
    loaded, prompt = ModelPool("cpu", "float32", 2**40).get(ref), list(range(40, 60))
    usual = steps(loaded, prompt, 20)
    expected = token_ids(usual)
    sent = [*expected[:right], expected[right] + 1, *expected[right + 1 :]]
    config = GenerateConfig(max_tokens=20, eos_ids=frozenset())
    generated = list(generate(loaded.target, ClientDrafter(loaded.drafter({}), sent), prompt, config))
    assert token_ids(generated) == expected
    assert generated[1].draft_record.tokens == (tuple(sent[1:]) if right else usual[1].draft_record.tokens)
