"""Measuring what `evaluation.costs` holds: forwards by rows and sequences, drafting by depth, layers of the base alone.

Every figure is a median of rounds; in a round everything takes its turn, so that a disturbance hits all alike.
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
from decoding.drafters.base import Drafter
from decoding.drafters.eagle import EagleDrafter
from decoding.drafters.medusa import MedusaDrafter
from decoding.drafters.parts import TuningSpace
from decoding.drafters.standalone import StandaloneDrafter
from decoding.generate import generate
from decoding.target import Target, fast_target
from decoding.tree import DraftTree, chain_shape
from decoding.tuning import measure_forward
from evaluation.costs import Costs
from evaluation.machine import describe_machine
from evaluation.shapes import CHAIN, TREE, chain_options
from models.base import LoadedBase
from models.methods import train_config
from models.methods.expectation import rising
from models.methods.standalone import shape_of
from models.runtime.cache import KVCache
from models.runtime.forward import FastForward, fastest
from models.runtime.interface import Forward, Inputs, Selection
from models.standalone import StandaloneDraft, base_shape

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
BATCHES = (1, 2, 4, 8, 16)
PASS_ROWS = (1, 2, 4, 8, 16, 32, 64)
STEP_TOKENS = 12
"""Tokens of an answer in which drafting is timed."""
CHAIN_DEPTH = 3
"""Of the chains with which layers of the base are timed as a draft."""
BEST = Selection(best_only=True)


class Many:
    """Sequences with the same text in one cache: what a forward over the first of them takes."""

    def __init__(self, base: LoadedBase, text: Sequence[int], batch: int, rows: int, forward: Forward | None = None):
        self.base, self.text, self.forward = base, list(text), forward or fastest(base)
        layers = len(getattr(self.forward, "layers", ())) or base.num_layers
        self.cache = KVCache.for_batch(layers, 2 * len(text) + rows, batch)
        for _ in range(batch):
            first = self.cache.admit(1)
            self.forward(Inputs.batch([self.text], [0], base.device, first), self.cache, Selection(last_only=True))
            self.cache.stage(len(text), first=first)
            self.cache.commit_all()

    def milliseconds(self, batch: int, rows: int) -> float:
        """One greedy forward of `rows` new rows of each of `batch` sequences; they are forgotten again."""
        new = (self.text * rows)[:rows]
        inputs = Inputs.batch([new] * batch, [len(self.text)] * batch, self.base.device)
        return timed(lambda: self.forward(inputs, self.cache, BEST), self.base.device)


class Meter:
    """One target, and a draft where there is one; `round` after `round` the figures get firmer. Standalone drafts are
    timed as the first layers of a base that our own forward runs, or with random weights where `hidden_size` gives them
    another width; other bases have none."""

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
        hidden_size: int = 0,
    ):
        self.target, self.prompt = target, list(prompt)
        self.rows, self.batches = tuple(sorted({1, *rows})), tuple(sorted({1, *batches}))
        base = target.base
        self.hidden_size = hidden_size
        self.many = Many(base, prompt, max(self.batches), max(self.rows)) if max(self.batches) > 1 else None
        self.cuts = self._cuts(base, layers) if isinstance(target.forward, FastForward) else {}
        self.drafters = _drafters(target, draft, space) if draft is not None and space else {}
        self.taken: dict[tuple[str, Any, int], list[float]] = defaultdict(list)

    def _cuts(self, base: LoadedBase, layers: Sequence[int]) -> dict[int, tuple[Many, StandaloneDrafter]]:
        cuts = {}
        for count in (n for n in layers if n < base.num_layers):
            own = self._resized(base, count) if self.hidden_size else self._cut(base, count)
            drafter = StandaloneDrafter(own, chain_shape(CHAIN_DEPTH), base.vocab_size)
            cuts[count] = Many(own.base, self.prompt, max(self.batches), 1, own.forward), drafter
        return cuts

    def _cut(self, base: LoadedBase, layers: int) -> Target:
        """The base's first layers alone; no weight is copied."""
        return Target(base, self.target.max_length, self.target.forward.cut(layers))

    def _resized(self, base: LoadedBase, layers: int) -> Target:
        """A model of that many layers and the width asked for, as a training would begin with. Raises BadInput."""
        sizes = {"draft_num_layers": layers, "draft_hidden_size": self.hidden_size, "draft_init": "random"}
        shape = shape_of(train_config("draft", **sizes), base_shape(base))
        draft = StandaloneDraft.from_base(base, layers, shape, random=True)
        return fast_target(draft.eval().requires_grad_(False).as_base(base), self.target.max_length)

    def round(self) -> None:
        """Everything once."""
        for key, ms in self._once():
            self.taken[key].append(ms)

    def _once(self) -> Iterator[tuple[tuple[str, Any, int], float]]:
        self.target.rewind(0)
        self.target.prefill(self.prompt)
        for rows, ms in measure_forward(self.target, self.rows, rounds=1).items():
            yield ("target", 1, rows), ms
        for batch in self.batches[1:]:
            for rows in self.rows:
                yield ("target", batch, rows), self.many.milliseconds(batch, rows)
        for layers, (many, drafter) in self.cuts.items():
            yield ("cut", layers, CHAIN_DEPTH), self._drafting(drafter)[0]
            for batch in self.batches:
                yield ("standalone", layers, batch), many.milliseconds(batch, 1)
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
        """Median milliseconds that drafting, and the rest of a step, take in an answer to the prompt."""
        self.target.rewind(0)
        config = GenerateConfig(max_tokens=STEP_TOKENS, eos_ids=frozenset())
        steps = [s for s in generate(self.target, drafter, self.prompt, config) if s.kind != "prefill"]
        return statistics.median(s.ms_draft for s in steps), statistics.median(s.ms_other for s in steps)

    def drawn(self, draw: np.random.Generator) -> Costs:
        """`costs` of rounds that are drawn anew with replacement."""
        rounds = len(self.taken["target", 1, 1])
        chosen = draw.integers(rounds, size=rounds)

        def again(taken: list[float]) -> list[float]:
            each = len(taken) // rounds  # of a round
            return [ms for n in chosen for ms in taken[n * each : (n + 1) * each]]

        return self.costs({key: again(taken) for key, taken in self.taken.items()})

    def costs(self, taken: dict[tuple[str, Any, int], list[float]] | None = None) -> Costs:
        """What the rounds so far come to, or what was `taken`."""
        medians: dict[str, dict[Any, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        for (what, which, at), times in (taken or self.taken).items():
            medians[what][which][at] = statistics.median(times)
        standalone = {
            layers: _with_overhead(by_batch, medians["cut"][layers][CHAIN_DEPTH])
            for layers, by_batch in medians["standalone"].items()
        }
        return Costs(
            {batch: rising(by_rows) for batch, by_rows in medians["target"].items()},
            {kind: rising(by_depth) for kind, by_depth in medians["draft"].items()},
            rising(medians["pass"].get("", {})),
            _rising_by_layers(standalone),
            medians["other"][""].get(0, 0.0),
            describe_machine(self.target.base.device) if taken is None else {},
            self.hidden_size,
        )


def _rising_by_layers(standalone: dict[int, dict[int, float]]) -> dict[int, dict[int, float]]:
    """The same with the costs of fewer layers at most those of more, at each number of sequences."""
    batches = {batch for by_batch in standalone.values() for batch in by_batch}
    columns = {b: rising({n: by_batch[b] for n, by_batch in standalone.items() if b in by_batch}) for b in batches}
    return {n: {b: columns[b][n] for b in by_batch} for n, by_batch in standalone.items()}


def _with_overhead(by_batch: dict[int, float], chain_ms: float) -> dict[int, float]:
    """A drafted token of each of so many sequences: a forward, and what drafting adds to it for one."""
    overhead = max(chain_ms / CHAIN_DEPTH - by_batch[1], 0.0)
    return {batch: ms + overhead for batch, ms in by_batch.items()}


def _drafters(target: Target, draft: Any, space: TuningSpace) -> dict[tuple[str, int], Drafter]:
    """The shallowest and the deepest chain and tree."""
    found = {}
    for depth in sorted({1, space.deepest}):
        chain = chain_options(depth, space.dynamic)
        found[CHAIN, depth] = make_drafter(target, draft, chain)
        if space.at_depth(depth) != chain:
            found[TREE, depth] = make_drafter(target, draft, space.at_depth(depth))
    return found


def passes(drafter: Drafter, device: torch.device) -> Iterator[tuple[int, float]]:
    """(rows, milliseconds) of one pass of the draft network, logits included, where the text ended last."""
    if isinstance(drafter, EagleDrafter):
        drafter.root(drafter.text[-1])
        for rows in PASS_ROWS:
            tokens = drafter.text[-1:] * rows
            yield rows, timed(lambda tokens=tokens: drafter.add(tokens, [0] * len(tokens)), device)
            drafter.root(drafter.text[-1])
    elif isinstance(drafter, MedusaDrafter):
        for rows in PASS_ROWS:
            hidden = drafter.hidden.expand(rows, -1).contiguous()
            yield rows, timed(lambda hidden=hidden: _heads(drafter, hidden), device)
    elif isinstance(drafter, StandaloneDrafter):
        own = drafter.draft
        for rows in (n for n in PASS_ROWS if n <= own.room):
            tree = DraftTree.chain((own.ids * rows)[:rows])
            yield rows, timed(lambda tree=tree: own.score(tree), device)


@torch.inference_mode()
def _heads(drafter: MedusaDrafter, hidden: torch.Tensor) -> None:
    drafter.heads(hidden, drafter.shape.max_depth)


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter() - began) * 1e3
