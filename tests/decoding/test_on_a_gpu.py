"""Decoding on an emulated GPU: no tensor on the wrong device, the tokens of plain decoding, counted launches."""

import random
from collections.abc import Callable, Iterator

import pytest
import torch

from corpus.batch import BatchAnswer, answer_all
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import Target, fast_target
from models.base import LoadedBase, load_base
from models.runtime.graphs import MAX_GRAPHS, GraphedForward
from models.runtime.interface import ForwardOutput
from tests.decoding.conftest import run, tokens_of
from tests.decoding.test_fast_drafters import TREE, made
from tests.tiny import FAMILIES
from tests.tools.emulated_cuda import EmulatedCuda, device_paused, emulated_cuda

PROMPT = list(range(20, 50))
DRAFTERS = ("none", "ngram", "medusa", "eagle", "eagle3", "draft")
LENGTH = 3
TREES = {"eagle": {"tree": TREE}, "eagle3": {"depth": 2, "top_k": 2, "nodes": 6}, "draft": {"depth": 2}}
COSTS = {
    "none": (3, 4, 30, 6),
    "ngram": (4, 5, 150, 7),
    "medusa": (21, 7, 150, 9),
    "eagle": (262, 52, 1300, 54),
    "eagle3": (302, 54, 1400, 56),
    "draft": (59, 18, 310, 32),
}
"""Maximum launches and synchronizations of a greedy step, and of a sampled one. A captured graph is one launch."""
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 1}


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedCuda]:
    """An emulated GPU, on which graphs compute without capture."""
    monkeypatch.setattr(GraphedForward.__init__, "__defaults__", (False, MAX_GRAPHS))
    with emulated_cuda() as device:
        yield device


def drafted(target: Target, name: str, **config: object) -> list[int]:
    """The tokens of a generation with a small tree."""
    target.rewind(0)
    draft = None if name in ("none", "ngram") else made(name, target.base)
    options = TREES.get(name, {}) | {"drafter": name}
    return tokens_of(run(target, make_drafter(target, draft, options), PROMPT, max_tokens=LENGTH, **config))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_drafter_emits_the_tokens_of_plain_decoding(
    family: str, base_of: Callable[..., LoadedBase], cuda: EmulatedCuda
) -> None:
    target = fast_target(load_base(base_of(family).path, device="cuda"), 200)
    assert target.base.device.type == "cuda"
    plain = drafted(target, "none")
    for name in DRAFTERS[1:]:
        assert drafted(target, name) == plain, name
        assert len(drafted(target, name, **SAMPLED)) == LENGTH, name


@pytest.mark.parametrize("name", COSTS)
def test_launches_and_synchronizations_of_a_step(
    name: str, base_of: Callable[..., LoadedBase], cuda: EmulatedCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the default trees of a GPU. The two synchronizations around the verification are those of the timing."""
    replay = GraphedForward.__call__

    def counted(self: GraphedForward, *arguments: object) -> ForwardOutput:
        with device_paused(cuda):
            output = replay(self, *arguments)
        cuda.launches["graph"] += 1
        return output

    monkeypatch.setattr(GraphedForward, "__call__", counted)
    target = fast_target(load_base(base_of("llama").path, "bfloat16", "cuda"), 200)
    draft = None if name in ("none", "ngram") else made(name, target.base)
    found = []
    for sampling in ({}, SAMPLED):
        target.rewind(0)
        steps = generate(
            target, make_drafter(target, draft, {"drafter": name}), PROMPT, GenerateConfig(max_tokens=20, **sampling)
        )
        next(steps)  # the prefill
        cuda.reset()
        next(steps)
        found += [cuda.launches.total(), cuda.synchronizations.total()]
    assert all(count <= most for count, most in zip(found, COSTS[name], strict=True)), found


def test_typical_acceptance(base_of: Callable[..., LoadedBase], cuda: EmulatedCuda) -> None:
    target = fast_target(load_base(base_of("llama").path, device="cuda"), 200)
    assert len(drafted(target, "medusa", acceptance="typical", **SAMPLED)) == LENGTH


@pytest.mark.parametrize("family", ["llama", "generic"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8}, {"temperature": 0.8, "top_p": 0.9}])
def test_a_batch_is_answered_as_one_by_one(
    family: str, sampling: dict[str, float], base_of: Callable[..., LoadedBase], cuda: EmulatedCuda
) -> None:
    folder = base_of(family).path
    alone, batch = (answers(load_base(folder, device="cuda"), size, **sampling) for size in (1, 4))
    assert alone == batch and len(batch) == 6


def answers(base: LoadedBase, size: int, temperature: float = 0.0, top_p: float = 1.0) -> dict[int, list[int]]:
    base.eos_ids = frozenset()
    waiting = [BatchAnswer(PROMPT[: 6 + i], 5, random.Random(i), i, temperature) for i in range(6)]

    def source(count: int) -> list[BatchAnswer]:
        taken, waiting[:] = waiting[:count], waiting[count:]
        return taken

    return {one.tag: one.tokens for ended, _ in answer_all(base, source, size, top_p) for one in ended}


def test_a_cpu_tensor_among_those_of_the_device_is_an_error(cuda: EmulatedCuda) -> None:
    ones = torch.ones(3, device="cuda")
    assert (ones + torch.tensor(2.0)).tolist() == [3, 3, 3]
    for operation in (lambda: ones + torch.ones(3), lambda: torch.ones(3)[ones.long()], lambda: ones.numpy()):
        with pytest.raises((RuntimeError, TypeError), match="cuda|device"):
            operation()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())
