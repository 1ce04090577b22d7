"""The best token found with a half-precision head equals the best token of the whole head in fp32."""

from types import NoneType

import pytest
import torch

from decoding.config import GenerateConfig
from decoding.drafters.base import PlainDrafter
from decoding.generate import generate
from decoding.target import fast_target
from models.base import load_base
from models.runtime.argmax import HeadArgmax, argmax, argmax_table
from models.runtime.linear import packing_works
from tests.tiny import make_tiny_base

needs_bfloat16 = pytest.mark.skipif(
    not packing_works(torch.bfloat16), reason="a screen is made of a packed product in bfloat16, which is missing here"
)
WIDTH = 64


def rows(count: int, seed: int, size: float = 1.0) -> torch.Tensor:
    return size * torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


@needs_bfloat16
@pytest.mark.parametrize("size", [1e-3, 1.0, 30.0])
@pytest.mark.parametrize("count", [1, 3, 4, 9])
@pytest.mark.parametrize("tokens", [64 * 80, 5000, 4999])
def test_random_heads(tokens, count, size):
    table = rows(tokens, 0)
    best = HeadArgmax(table)
    for seed in range(30):
        hidden = rows(count, seed, size)
        assert torch.equal(best(hidden), (hidden @ table.T).argmax(1))


@needs_bfloat16
@pytest.mark.parametrize("tail", [2.0**-9, -(2.0**-9)])
def test_rows_that_half_precision_cannot_tell_apart(tail):
    """A hundred rows round to the same values; one of them is best by less than bfloat16 can represent."""
    table = rows(400, 1)
    table[100:200] = table[100].bfloat16().float()
    table[137] += table[137].abs() * tail * table[137].sign() * 0.4
    hidden = table[100:101] * 3
    expected = int((hidden @ table.T).argmax())
    assert (expected == 137) == (tail > 0) and torch.equal(table[137].bfloat16(), table[100].bfloat16())
    assert HeadArgmax(table)(hidden).tolist() == [expected]


@needs_bfloat16
def test_of_equal_rows_the_first_is_taken():
    table = rows(640, 2)
    table[[7, 300, 639]] = 2 * table[300]
    assert HeadArgmax(table)(table[300:301]).tolist() == [7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tokens", [640, 5000, 4999, 3])
def test_best_ids_are_those_of_argmax(tokens, dtype):
    """In bfloat16 many logits are equal; then the first one counts."""
    for seed in range(20):
        logits = torch.randn(5, tokens, generator=torch.Generator().manual_seed(seed)).to(dtype)
        first = [row.tolist().index(max(row.tolist())) for row in logits]
        assert argmax(logits).tolist() == first
    assert argmax(torch.tensor([[1.0, float("nan"), 2.0]])).tolist() == [1], "as argmax has it"


@needs_bfloat16
def test_every_error_is_within_the_bound():
    """In the worst case all errors have the same sign: rows and hidden states lose half a unit in every channel."""
    lost = torch.full((WIDTH,), 1.0 + 2.0**-8)
    table = torch.stack([lost, torch.ones(WIDTH) + 2.0**-9])
    hidden = lost[None] * 4
    assert torch.equal(lost.bfloat16().float(), torch.ones(WIDTH)), "rounded down, to even"
    best = HeadArgmax(table)
    off, bound = (hidden @ table[0]) - best.rough(hidden.bfloat16())[:, 0], best.error(hidden, hidden.bfloat16())
    assert 0.99 * bound < off <= bound, "the product itself, 256, is not rounded"
    assert best(hidden).tolist() == [0]


@needs_bfloat16
def test_too_many_candidates_or_none_need_the_whole_head():
    table = torch.ones(3000, WIDTH)
    assert HeadArgmax(table)(rows(1, 3)) is None
    assert HeadArgmax(rows(50, 4))(torch.full((2, WIDTH), float("nan"))) is None


@needs_bfloat16
@pytest.mark.parametrize(("family", "tied"), [("llama", True), ("llama", False), ("qwen3", True), ("phi", False)])
def test_tied_heads_are_screened_and_others_are_not(tmp_path, family, tied, monkeypatch):
    # Products in bfloat16 are right even if not native, so the test also runs on processors that would not screen.
    monkeypatch.setattr("models.runtime.argmax.has_bfloat16", lambda device: device.type == "cpu")
    make_tiny_base(tmp_path, family, tie_word_embeddings=tied)
    base = load_base(tmp_path)
    assert (argmax_table(base) is not None) == tied
    assert argmax_table(load_base(tmp_path, dtype="bfloat16")) is None
    target = fast_target(base, 128)
    config = GenerateConfig(max_tokens=40, eos_ids=frozenset())
    ids = [token.id for step in generate(target, PlainDrafter(), [5, 6, 7], config) for token in step.tokens]
    assert isinstance(target.forward.__dict__.get("argmax"), HeadArgmax if tied else NoneType)
    monkeypatch.setattr(target.forward, "argmax", None)
    target.rewind(0)
    assert ids == [token.id for step in generate(target, PlainDrafter(), [5, 6, 7], config) for token in step.tokens]
