"""Shared by the parts of benchmarks.gpu_check: device, sizes, claims and figures."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from models.base import load_base
from models.checkpoints import save_draft
from models.eagle3 import Eagle3Draft
from models.starter import STARTER_HEAD, starter_path
from tests.tiny import make_tiny_base

LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
}
SMALL_SHAPE = LLAMA_8B | {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
}


class OutOfTime(Exception):
    """The time limit is reached; the part stops."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the parts: tokens, prompts, rows of data, MiB copied."""

    tokens: int = 48
    prompts: int = 2
    questions: int = 6
    answer_tokens: int = 128
    shape: dict[str, int] = field(default_factory=lambda: LLAMA_8B)
    shape_tokens: int = 64
    copied_mib: int = 2048
    rows: int = 64
    row_tokens: int = 384
    batch_tokens: int = 8192
    steps: int = 24
    answers: int = 160
    batch: int = 64


DRY = Sizes(
    tokens=8,
    prompts=1,
    questions=1,
    answer_tokens=6,
    shape=SMALL_SHAPE,
    shape_tokens=8,
    copied_mib=8,
    rows=8,
    row_tokens=24,
    batch_tokens=64,
    steps=4,
    answers=6,
    batch=4,
)


@dataclass
class Claim:
    """A claim about GPUs: its goal and the measured figure. `holds` None: not judged."""

    name: str
    goal: str
    figure: str
    holds: bool | None = None


@dataclass
class Bench:
    """Environment of the parts, which add their claims and further figures to it. `scratch`: temporary folder.
    `deadline`: value of time.monotonic() at which they must have ended. `dry`: on the CPU with tiny shapes, where only
    exactness is judged."""

    device: torch.device
    scratch: Path
    deadline: float
    dry: bool = False
    claims: list[Claim] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def sizes(self) -> Sizes:
        return DRY if self.dry else Sizes()

    def claim(self, name: str, goal: str, figure: str, holds: bool | None) -> None:
        """Add a claim that also a dry run judges."""
        self.claims.append(Claim(name, goal, figure, holds))

    def gpu_claim(self, name: str, goal: str, figure: str, holds: bool) -> None:
        """Add a claim about speed or a GPU-only feature."""
        self.claim(name, goal, figure, None if self.dry else holds)

    def check_time(self) -> float:
        """Seconds left. Raises OutOfTime once the deadline is past."""
        if (left := self.deadline - time.monotonic()) <= 0:
            raise OutOfTime
        return left

    @cached_property
    def starter(self) -> Path:
        """Folder of the starter base model; of a tiny one in a dry run."""
        return make_tiny_base(self.scratch / "starter") if self.dry else starter_path()

    @cached_property
    def head(self) -> Path:
        """Folder of the starter's draft model; of an untrained one in a dry run."""
        if not self.dry:
            return STARTER_HEAD
        return save_draft(self.scratch / "starter_head", Eagle3Draft.from_base(load_base(self.starter)), {})


Part = Callable[[Bench], None]


def first_line(error: BaseException) -> str:
    """An error in one line of at most 200 characters."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:200].rstrip(": ").replace("|", "/")  # for a table cell
