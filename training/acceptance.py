"""Acceptance of a greedy draft chain on held-out conversations, without generating: the same τ as the engine reports.

At position t (token t+1 just emitted) the engine accepts `run` draft tokens, adds one token of its own and continues at
t + run + 1. When the data are the base model's own greedy answers, walking over them gives exactly the engine's steps.
Steps truncated by the end of an answer are excluded, as in the engine's figure.
"""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile

import psutil
import torch
from torch import Tensor

from decoding.tuning import best_choices, expected_tau
from training.method import Outcome

TREE_NODES = 8
WIDTH = 8


@dataclass
class Acceptance:
    """Totals over positions (`hits`, `valid`, by depth) and over the steps of a walk (`steps`, `emitted`)."""

    hits: Tensor = field(default_factory=lambda: torch.zeros(1))
    valid: Tensor = field(default_factory=lambda: torch.zeros(1))
    steps: int = 0
    emitted: int = 0
    paths: Counter[tuple[int, ...]] = field(default_factory=Counter)
    """{(r₁, r₂, …): count}: how often the correct tokens had these ranks in the draft; the nodes of a wide tree."""

    @property
    def tau(self) -> float:
        """Mean tokens emitted per verification; 1 when no step was complete."""
        return self.emitted / self.steps if self.steps else 1.0

    def tree_tau(self, nodes: int = TREE_NODES) -> float:
        """Mean tokens per verification with the best static tree of `nodes` (root included). Slightly overestimated:
        all positions have equal weight here, while a walk has more positions after a miss."""
        total = max(float(self.valid[0]), 1)
        values = {path: count / total for path, count in self.paths.items()}
        return expected_tau(values, best_choices(values, nodes))

    def top1(self) -> list[float]:
        """Fraction of the positions where the top token is correct, by depth."""
        return (self.hits / self.valid.clamp(min=1)).tolist()

    def add(self, outcome: Outcome, row: Tensor, position: Tensor) -> None:
        """Add the result of `drafted` for one batch; row, position [N] in ascending order."""
        hits, valid = outcome.hits, outcome.valid
        self.hits = self.hits + hits.sum(0).cpu().double()
        self.valid = self.valid + valid.sum(0).cpu().double()
        runs = (hits & valid).int().cumprod(1).sum(1).tolist()
        positions = list(zip(row.tolist(), position.tolist(), strict=True))
        steps, emitted = simulate_steps(runs, positions)
        self.steps += steps
        self.emitted += emitted
        for ranks in outcome.ranks.tolist():  # [0, 2, 99] counts (0,) and (0, 2)
            path_ranks = tuple(takewhile(lambda rank: rank < WIDTH, ranks))
            self.paths.update(path_ranks[:depth] for depth in range(1, len(path_ranks) + 1))


def simulate_steps(runs: list[int], positions: list[tuple[int, int]]) -> tuple[int, int]:
    """(complete steps, tokens emitted) over all answers.

    runs[n]: draft tokens accepted at positions[n] = (row, position); each has at least one true token to draft.
    A step at t emits t+2 … t+2+run; it is complete when its last token is in the answer, i.e. t+run is in positions.

    Answer tokens 3…8: positions 2…6. Runs 2, –, –, 0, 1: the step at 2 emits 4, 5, 6; the one at 5 emits 7; the one at
    6 would emit 8 and 9, but 9 is not in the answer: truncated, not counted. So 2 steps, 4 tokens, τ = 2.
    """
    index = {key: n for n, key in enumerate(positions)}
    steps = emitted = 0
    for row, position in positions:
        if (row, position - 1) in index:
            continue  # not the start of an answer
        while (n := index.get((row, position))) is not None:
            if (row, position + runs[n]) in index:
                steps += 1
                emitted += runs[n] + 1
            position += runs[n] + 1
    return steps, emitted


@torch.no_grad()
def measure_acceptance(method: object, features: Iterable[dict[str, Tensor]]) -> Acceptance:
    """Acceptance of `method.drafted` over the features of held-out batches, one in memory at a time."""
    total = Acceptance()
    for batch in features:
        outcome = method.drafted(batch)
        total.add(outcome, batch["row"], batch["position"])
        del batch, outcome  # before the next batch is computed
    return total


@dataclass
class StepMetrics:
    """Metrics of training steps since the last log point."""

    loss: Tensor | float = 0.0
    hits: Tensor | None = None
    valid: Tensor | None = None
    tokens: int = 0
    steps: int = 0
    started: float = field(default_factory=time.monotonic)

    def add(self, loss: Tensor, hits: Tensor, valid: Tensor) -> None:
        self.loss = self.loss + loss
        self.hits = hits if self.hits is None else self.hits + hits
        self.valid = valid if self.valid is None else self.valid + valid

    @classmethod
    def restored(cls, totals: list[float], steps: int, tokens: int, main: bool, device: torch.device) -> "StepMetrics":
        """Restored from the sum of `packed` over all processes, which the main process takes over."""
        values = torch.tensor(totals, device=device) * main
        return cls(values[0], *values[1:].long().chunk(2), tokens, steps)

    def packed(self, device: torch.device) -> Tensor:
        """[1 + 2·depths] float64: loss, hits, valid, for a sum over processes."""
        parts = [torch.as_tensor(self.loss).reshape(1), self.hits, self.valid]
        return torch.cat([p.to(device, torch.float64) for p in parts])

    def values(self, totals: Tensor, depth_name: str, device: torch.device) -> dict[str, float]:
        hits, valid = totals[1:].chunk(2)
        rates = (hits / valid.clamp(min=1)).tolist()
        top1 = {f"train/top1_{depth_name}{i}": rate for i, rate in enumerate(rates, 1)}
        seconds = max(time.monotonic() - self.started, 1e-9)
        on_gpu = device.type == "cuda"
        used = torch.cuda.max_memory_allocated(device) if on_gpu else psutil.Process().memory_info().rss
        return {
            "train/loss": float(totals[0]) / self.steps,
            **top1,
            "train/tokens_per_second": self.tokens / seconds,
            "train/memory_mb": used / 2**20,
        }


def eval_values(acceptance: "Acceptance", depth_name: str) -> dict[str, float]:
    top1 = {f"eval/top1_{depth_name}{i + 1}": value for i, value in enumerate(acceptance.top1())}
    return {**top1, "eval/tau": acceptance.tau, "eval/tau_tree": acceptance.tree_tau()}
