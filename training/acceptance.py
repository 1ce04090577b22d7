"""Expected acceptance of a greedy chain on held-out conversations, without generating: the same τ as the engine's.

The engine stands at a place t (token t+1 just emitted), accepts `run` draft tokens, adds one of its own and goes on at
t + run + 1. Where the data are the base's own greedy answers, walking over them gives exactly its steps.
Steps cut by the end of an answer are left out, as in the engine's figure.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile

import torch
from torch import Tensor

from decoding.tuning import best_choices, expected_tau
from training.method import Outcome

TREE_NODES = 8
WIDTH = 8


@dataclass
class Acceptance:
    """Totals over places and steps. `hits`/`valid` count by depth; `steps`, `emitted` by walking."""

    hits: list[int] = field(default_factory=list)
    valid: list[int] = field(default_factory=list)
    steps: int = 0
    emitted: int = 0
    paths: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """How often the right tokens were the draft's r₁-th, r₂-th, … best: places through each node of a wide tree."""

    @property
    def tau(self) -> float:
        """Mean tokens emitted per verification; 1 when no step was whole."""
        return self.emitted / self.steps if self.steps else 1.0

    def tree_tau(self, nodes: int = TREE_NODES) -> float:
        """Mean tokens a verification would emit with the best static tree of `nodes` (root included) for these places.

        All places count alike here, while walking favours those after a miss: an estimate, a little on the high side.
        """
        places = max(self.valid[0], 1) if self.valid else 1
        values = {path: count / places for path, count in self.paths.items()}
        return expected_tau(values, best_choices(values, nodes))

    def top1(self) -> list[float]:
        """Part of the places where the best token of each depth is right."""
        return [h / v if v else 0.0 for h, v in zip(self.hits, self.valid, strict=True)]

    def add(self, outcome: Outcome, row: Tensor, position: Tensor) -> None:
        """Add what `drafted` gave for one batch; row, position [N] in ascending order."""
        hits, valid = outcome.hits, outcome.valid
        self.hits = _added(self.hits, hits.sum(0).tolist())
        self.valid = _added(self.valid, valid.sum(0).tolist())
        runs = (hits & valid).int().cumprod(1).sum(1).tolist()
        places = list(zip(row.tolist(), position.tolist(), strict=True))
        steps, emitted = walk(runs, places)
        self.steps += steps
        self.emitted += emitted
        self.paths.update(_paths(outcome.ranks.tolist()))


def walk(runs: list[int], places: list[tuple[int, int]]) -> tuple[int, int]:
    """(whole steps, tokens emitted) over all answers.

    runs[n]: draft tokens accepted at places[n] = (row, position); a place has at least one true token to draft.
    A step at t emits t+2 … t+2+run; it is whole when its last token lies in the answer, that is, when t+run is a place.

    Answer tokens 3…8: places 2…6. Runs 2, –, –, 0, 1: the step at 2 emits 4, 5, 6; the one at 5 emits 7; the one at 6
    would emit 8 and 9, but 9 is no token of the answer: cut, not counted. So 2 steps, 4 tokens, τ = 2.
    """
    at = {place: n for n, place in enumerate(places)}
    steps = emitted = 0
    for row, position in places:
        if (row, position - 1) in at:
            continue  # not the start of an answer
        while (n := at.get((row, position))) is not None:
            if (row, position + runs[n]) in at:
                steps += 1
                emitted += runs[n] + 1
            position += runs[n] + 1
    return steps, emitted


def _paths(ranks: list[list[int]]) -> Iterator[tuple[int, ...]]:
    """Every beginning of every row up to its first rank outside a wide tree: [0, 2, 99] gives (0,) and (0, 2)."""
    for row in ranks:
        inside = tuple(takewhile(lambda rank: rank < WIDTH, row))
        yield from (inside[:depth] for depth in range(1, len(inside) + 1))


def _added(a: list[int], b: list[int]) -> list[int]:
    return b if not a else [x + y for x, y in zip(a, b, strict=True)]


@torch.no_grad()
def measure(method: object, features: list[dict[str, Tensor]]) -> Acceptance:
    """Acceptance of `method.drafted` over the features of held-out batches."""
    total = Acceptance()
    for batch in features:
        outcome = method.drafted(batch)
        total.add(outcome, batch["row"], batch["position"])
    return total
