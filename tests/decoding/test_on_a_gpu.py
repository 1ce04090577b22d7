"""Decoding on an emulated GPU: no tensor on the wrong device, the tokens of plain decoding, counted launches."""

import gc
import random
from collections.abc import Callable, Iterator
from itertools import islice

import pytest
import torch

from corpus.batch import BatchAnswer, answer_all
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import ClientDrafter, Drafter
from decoding.generate import generate
from decoding.target import Target, fast_target
from models.base import LoadedBase, load_base
from models.runtime.graphs import CapturedFunction
from tests.decoding.conftest import run, tokens_of
from tests.decoding.test_fast_drafters import TREE, make_draft
from tests.tiny import FAMILIES
from tests.tools.emulated_cuda import EmulatedCuda, emulated_cuda

PROMPT = list(range(20, 50))
DRAFTERS = ("none", "ngram", "medusa", "eagle", "eagle3", "peagle", "dflash", "draft")
LENGTH = 3
TREES = {name: {"tree": TREE} for name in ("eagle", "peagle")}
TREES |= {"eagle3": {"depth": 2, "top_k": 2, "nodes": 6}, "draft": {"depth": 2}}
LAUNCHES = {
    "none": (11, 16),
    "ngram": (11, 16),
    "medusa": (16, 21),
    "eagle": (19, 24),
    "eagle3": (22, 27),
    "peagle": (22, 27),
    "dflash": (22, 27),
    "draft": (15, 25),
}
"""Launches of a greedy step, and of a sampled one. A graph is one launch; to move accepted rows takes five more."""
SAMPLED = {"temperature": 0.8, "top_p": 0.9, "seed": 1}
WITH_ALL_DRAFTERS = ("llama", "mistral", "phi", "granite", "gemma2")
"""One family for each rule of logits and kind of attention: only the standalone draft has more of its base. On a CPU
test_exactness.py runs every drafter beside every family."""
WITH_ALL_FAMILIES = ("ngram", "eagle3", "draft")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedCuda]:
    monkeypatch.setattr("models.runtime.graphs.WARM_UPS", 1)  # all runs compute the same
    with emulated_cuda() as device:
        yield device


def drafter_of(target: Target, name: str) -> Drafter:
    """A drafter with a small tree."""
    draft = None if name in ("none", "ngram") else make_draft(name, target.base)
    return make_drafter(target, draft, TREES.get(name, {}) | {"drafter": name})


def tokens(target: Target, drafter: Drafter, length: int = LENGTH, **config: object) -> list[int]:
    target.rewind(0)
    return tokens_of(run(target, drafter, PROMPT, max_tokens=length, **config))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_drafter_emits_the_tokens_of_plain_decoding(
    family: str, base_of: Callable[..., LoadedBase], cuda: EmulatedCuda
) -> None:
    """Every drafter samples with llama, and every family with one of its drafters."""
    target = fast_target(load_base(base_of(family).path, device="cuda"), 200)
    assert target.base.device.type == "cuda"
    plain = tokens(target, drafter_of(target, "none"))
    names = DRAFTERS[1:] if family in WITH_ALL_DRAFTERS else WITH_ALL_FAMILIES
    sampled_name = names[[*FAMILIES].index(family) % len(names)]
    for name in names:
        drafter = drafter_of(target, name)
        assert tokens(target, drafter) == plain, name
        if family == "llama" or name == sampled_name:
            assert len(tokens(target, drafter, 2, **SAMPLED)) == 2, name


@pytest.mark.parametrize("name", LAUNCHES)
def test_launches_and_synchronizations_of_a_step(
    name: str, base_of: Callable[..., LoadedBase], cuda: EmulatedCuda
) -> None:
    """With the default trees of a GPU: at most 40 launches; the host waits for the draft and for the verification."""
    target = fast_target(load_base(base_of("llama").path, "bfloat16", "cuda"), 200)
    draft = None if name in ("none", "ngram") else make_draft(name, target.base)
    for sampling, limit in zip(({}, SAMPLED), LAUNCHES[name], strict=True):
        target.rewind(0)
        config = GenerateConfig(max_tokens=20, **sampling)
        steps = generate(target, make_drafter(target, draft, {"drafter": name}), PROMPT, config)
        list(islice(steps, 3))  # the prefill, and steps that capture the graphs
        cuda.reset()
        next(steps)
        waits = 1 if name in ("none", "ngram") else 2
        assert cuda.launches.total() <= limit and cuda.synchronizations.total() == waits, (cuda.launches, sampling)


@pytest.mark.parametrize(("family", "sampling"), [("mistral", {}), ("llama", SAMPLED)])
def test_graphs_draft_the_trees_of_a_cpu(
    family: str, sampling: dict[str, float], base_of: Callable[..., LoadedBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph is used in several steps. The first ones accept several tokens: the client drafts a correct chain."""
    # A CPU would draft in bfloat16, whose rounding could change a tree.
    monkeypatch.setattr("decoding.drafters.runners.drafting_dtype", lambda draft: torch.float32)
    folder = base_of(family).path
    target = fast_target(load_base(folder), 200)
    chain = tokens(target, make_drafter(target), LENGTH + 3)

    def trees(name: str, device: str) -> list[tuple[object, object]]:
        base = load_base(folder, device=device)
        draft, target = make_draft(name, base), fast_target(base, 200)
        options = {"tree": TREE, "sample": True} if sampling and name in ("eagle", "eagle3") else TREES.get(name, {})
        drafter = ClientDrafter(make_drafter(target, draft, {"drafter": name, **options}), chain)
        steps = run(target, drafter, PROMPT, max_tokens=12, **sampling)
        return [(step.tokens, step.draft_record.tokens, step.draft_record.parents) for step in steps]

    for name in DRAFTERS[2:]:
        expected = trees(name, "cpu")
        with emulated_cuda():
            actual = trees(name, "cuda")
        assert actual == expected and len(actual) > 3, name


def test_no_graph_is_freed_during_a_capture(cuda: EmulatedCuda) -> None:
    """CUDA refuses it, so garbage is not collected meanwhile; it was seen on an H100."""
    collecting = []
    function = CapturedFunction(lambda x: collecting.append(gc.isenabled()) or (x + 1,), [torch.ones(2, device="cuda")])
    assert function()[0].tolist() == [2, 2]
    warm_up, capture, *_ = collecting
    assert warm_up and not capture and gc.isenabled()


def test_typical_acceptance(base_of: Callable[..., LoadedBase], cuda: EmulatedCuda) -> None:
    target = fast_target(load_base(base_of("llama").path, device="cuda"), 200)
    assert len(tokens(target, drafter_of(target, "medusa"), acceptance="typical", **SAMPLED)) == LENGTH


@pytest.mark.parametrize(
    ("family", "sampling"),
    [
        *(("llama", {}), ("llama", {"temperature": 0.8})),
        *(("generic", {}), ("generic", {"temperature": 0.8, "top_p": 0.9})),
    ],
)
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

    return {answer.tag: answer.tokens for ended, _ in answer_all(base, source, size, top_p) for answer in ended}


def test_a_cpu_tensor_among_those_of_the_device_is_an_error(cuda: EmulatedCuda) -> None:
    ones = torch.ones(3, device="cuda")
    assert (ones + torch.tensor(2.0)).tolist() == [3, 3, 3]
    for operation in (lambda: ones + torch.ones(3), lambda: torch.ones(3)[ones.long()], lambda: ones.numpy()):
        with pytest.raises((RuntimeError, TypeError), match="cuda|device"):
            operation()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device="cuda", generator=torch.Generator())
