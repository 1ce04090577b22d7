"""Training metrics accumulated since the last log point."""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from training.acceptance import Acceptance


@dataclass
class StepMetrics:
    loss: Tensor | float = 0.0
    hits: Tensor | None = None
    valid: Tensor | None = None
    tokens: int = 0
    steps: int = 0
    since: float = field(default_factory=time.monotonic)

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
        seconds = max(time.monotonic() - self.since, 1e-9)
        return {
            "train/loss": float(totals[0]) / self.steps,
            **top1,
            "train/tokens_per_second": self.tokens / seconds,
            "train/memory_mb": memory_mb(device),
        }


def eval_values(acceptance: Acceptance, depth_name: str) -> dict[str, float]:
    top1 = {f"eval/top1_{depth_name}{i + 1}": value for i, value in enumerate(acceptance.top1())}
    return {**top1, "eval/tau": acceptance.tau, "eval/tau_tree": acceptance.tree_tau()}


def memory_mb(device: torch.device) -> float:
    """Peak GPU memory in MiB on CUDA, else this process's resident size."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import psutil

    return psutil.Process().memory_info().rss / 2**20
