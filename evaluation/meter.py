"""Measures `evaluation.costs`: forwards by rows and sequences, drafting by depth, and the first layers of the base.

Every result is a median over rounds; each round measures everything once, so that disturbances affect all results.
"""

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import Drafter, TuningSpace
from decoding.drafters.standalone import StandaloneDrafter
from decoding.generate import generate
from decoding.step_costs import non_decreasing
from decoding.target import Target
from decoding.tree import chain_shape
from decoding.tuning import measure_forward
from evaluation.costs import Costs
from evaluation.machine import describe_machine
from evaluation.shapes import CHAIN, TREE, chain_options, has_trees
from models.base import LoadedBase
from models.runtime.cache import KVCache
from models.runtime.forward import FastForward, fastest_forward
from models.runtime.interface import Forward, Inputs, Selection

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
BATCHES = (1, 2, 4, 8, 16)
PASS_ROWS = (1, 2, 4, 8, 16, 32, 64)
STEP_TOKENS = 12
"""Tokens generated to time drafting."""
CHAIN_DEPTH = 3
"""Depth of the chains for timing layers of the base as a draft."""
BEST = Selection(argmax_only=True)


class RepeatedBatch:
    """Sequences with the same text in one cache, to time forwards over the first `batch` of them."""

    def __init__(self, base: LoadedBase, text: Sequence[int], batch: int, rows: int, forward: Forward | None = None):
        self.base, self.text, self.forward = base, list(text), forward or fastest_forward(base)
        layers = len(getattr(self.forward, "layers", ())) or base.num_layers
        self.cache = KVCache.for_batch(layers, 2 * len(text) + rows, batch, base.layer_devices)
        for _ in range(batch):
            first = self.cache.admit(1)
            self.forward(Inputs.batch([self.text], [0], base.device, first), self.cache, Selection(last_only=True))
            self.cache.stage(len(text), first=first)
            self.cache.commit_all()

    def milliseconds(self, batch: int, rows: int) -> float:
        """Time of one greedy forward of `rows` new rows per sequence for `batch` sequences; the rows are not kept."""
        new = (self.text * rows)[:rows]
        inputs = Inputs.batch([new] * batch, [len(self.text)] * batch, self.base.device)
        return time_milliseconds(lambda: self.forward(inputs, self.cache, BEST), self.base.device)


class Meter:
    """Measures one target, and optionally a draft; call `round` repeatedly. Standalone drafts are timed as the first
    layers of the base; only for bases with our own forward."""

    def __init__(
        self,
        target: Target,
        prompt: Sequence[int],
        draft: Any = None,
        space: TuningSpace | None = None,
        *,
        rows: Sequence[int] = ROWS,
        batches: Sequence[int] = BATCHES,
        layers: Sequence[int] = (),
    ):
        self.target, self.prompt = target, list(prompt)
        self.rows, self.batches = tuple(sorted({1, *rows})), tuple(sorted({1, *batches}))
        base = target.base
        max_batch = max(self.batches)
        self.repeated = RepeatedBatch(base, prompt, max_batch, max(self.rows)) if max_batch > 1 else None
        self.truncated = self._truncated(base, layers) if isinstance(target.forward, FastForward) else {}
        self.drafters = _drafters(target, draft, space) if draft is not None and space else {}
        self.times: dict[tuple[str, Any, int], list[float]] = defaultdict(list)

    def _truncated(self, base: LoadedBase, layers: Sequence[int]) -> dict[int, tuple[RepeatedBatch, StandaloneDrafter]]:
        truncated = {}
        for count in (n for n in layers if n < base.num_layers):
            target = Target(base, self.target.max_length, self.target.forward.cut(count))  # weights are shared
            drafter = StandaloneDrafter(target, chain_shape(CHAIN_DEPTH), base.vocab_size)
            truncated[count] = RepeatedBatch(target.base, self.prompt, max(self.batches), 1, target.forward), drafter
        return truncated

    def round(self) -> None:
        """Measure everything once."""
        for key, ms in self._measure_once():
            self.times[key].append(ms)

    def _measure_once(self) -> Iterator[tuple[tuple[str, Any, int], float]]:
        self.target.rewind(0)
        self.target.prefill(self.prompt)
        for rows, ms in measure_forward(self.target, self.rows, rounds=1).items():
            yield ("target", 1, rows), ms
        for batch in self.batches[1:]:
            for rows in self.rows:
                yield ("target", batch, rows), self.repeated.milliseconds(batch, rows)
        for layers, (repeated, drafter) in self.truncated.items():
            yield ("cut", layers, CHAIN_DEPTH), self._drafting(drafter)[0]
            for batch in self.batches:
                yield ("standalone", layers, batch), repeated.milliseconds(batch, 1)
        for (kind, depth), drafter in self.drafters.items():
            draft, other = self._drafting(drafter)
            yield ("draft", kind, depth), draft
            yield ("other", "", 0), other
            if kind == CHAIN and depth == 1:
                for rows, ms in passes(drafter, self.target.base.device):
                    yield ("pass", "", rows), ms
        if not self.drafters:
            yield ("other", "", 0), self._drafting(make_drafter(self.target))[1]

    def _drafting(self, drafter: Drafter) -> tuple[float, float]:
        """Median milliseconds of (drafting, rest of a step) in an answer to the prompt."""
        self.target.rewind(0)
        config = GenerateConfig(max_tokens=STEP_TOKENS, eos_ids=frozenset())
        steps = [s for s in generate(self.target, drafter, self.prompt, config) if s.kind != "prefill"]
        return statistics.median(s.ms_draft for s in steps), statistics.median(s.ms_other for s in steps)

    def resampled(self, rng: np.random.Generator) -> Costs:
        """`costs` of a bootstrap sample of the rounds."""
        rounds = len(self.times["target", 1, 1])
        chosen_rounds = rng.integers(rounds, size=rounds)

        def resample(times: list[float]) -> list[float]:
            each = len(times) // rounds  # measurements per round
            return [ms for n in chosen_rounds for ms in times[n * each : (n + 1) * each]]

        return self.costs({key: resample(times) for key, times in self.times.items()})

    def costs(self, times: dict[tuple[str, Any, int], list[float]] | None = None) -> Costs:
        """Medians over the rounds so far, or over `times`."""
        medians: dict[str, dict[Any, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for (kind, variant, x), values in (times or self.times).items():
            medians[kind][variant][x] = statistics.median(values)
        standalone = {
            layers: _with_overhead(by_batch, medians["cut"][layers][CHAIN_DEPTH])
            for layers, by_batch in medians["standalone"].items()
        }
        return Costs(
            {batch: non_decreasing(by_rows) for batch, by_rows in medians["target"].items()},
            {kind: non_decreasing(by_depth) for kind, by_depth in medians["draft"].items()},
            non_decreasing(medians["pass"].get("", {})),
            _rising_by_layers(standalone),
            medians["other"][""].get(0, 0.0),
            describe_machine(self.target.base.device) if times is None else {},
        )


def _rising_by_layers(standalone: dict[int, dict[int, float]]) -> dict[int, dict[int, float]]:
    batches = {batch for by_batch in standalone.values() for batch in by_batch}
    columns = {
        b: non_decreasing({n: by_batch[b] for n, by_batch in standalone.items() if b in by_batch}) for b in batches
    }
    return {n: {b: columns[b][n] for b in by_batch} for n, by_batch in standalone.items()}


def _with_overhead(by_batch: dict[int, float], chain_ms: float) -> dict[int, float]:
    """Cost of one drafted token per sequence: the forward, plus the drafting overhead measured for one sequence."""
    overhead = max(chain_ms / CHAIN_DEPTH - by_batch[1], 0.0)
    return {batch: ms + overhead for batch, ms in by_batch.items()}


def _drafters(target: Target, draft: Any, space: TuningSpace) -> dict[tuple[str, int], Drafter]:
    """Drafters with the shallowest and the deepest chain and tree."""
    drafters = {}
    for depth in sorted({1, space.deepest}):
        drafters[CHAIN, depth] = make_drafter(target, draft, chain_options(depth, space.dynamic))
        if has_trees(space):
            drafters[TREE, depth] = make_drafter(target, draft, space.at_depth(depth))
    return drafters


def passes(drafter: Drafter, device: torch.device) -> Iterator[tuple[int, float]]:
    """(rows, milliseconds) of one pass of the draft network: see `Drafter.network_pass`."""
    for rows in PASS_ROWS:
        if (run := drafter.network_pass(rows)) is not None:
            yield rows, time_milliseconds(run, device)


def time_milliseconds(function: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds that `function` takes, GPU work included."""
    started = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - started) * 1e3
