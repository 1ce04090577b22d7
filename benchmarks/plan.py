"""Plan of a training benchmark: the conversations of each step, and the settings."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.base import load_tokenizer, read_eos_ids
from training.batches import TokenisedConversation, epoch_order, load_conversations, make_batches
from training.setup import lr_factor


@dataclass(frozen=True)
class BenchmarkSettings:
    """Training settings, equal for all contenders."""

    seed: int = 0
    ttt_steps: int = 3
    ttt_decay: float = 0.8
    medusa_heads: int = 2
    medusa_layers: int = 1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 0.5
    lr: float = 1e-4
    schedule: str = "constant"
    warmup_ratio: float = 0.0


@dataclass(frozen=True)
class BenchmarkPlan:
    """`rows`: conversations; `steps`: lists of row indices, one micro-batch and optimizer step each."""

    rows: list[TokenisedConversation]
    steps: list[list[int]]
    settings: BenchmarkSettings

    @classmethod
    def make(
        cls, rows: list[TokenisedConversation], batch_tokens: int, epochs: int, settings: BenchmarkSettings
    ) -> "BenchmarkPlan":
        """Batch rows of similar length, as in our training loop; shuffle the steps each epoch."""
        groups = make_batches(rows, batch_tokens, settings.seed)
        orders = [epoch_order(len(groups), epoch, settings.seed) for epoch in range(epochs)]
        return cls(rows, [groups[i] for order in orders for i in order], settings)

    def tokens(self, step: int) -> int:
        """Tokens of a step without padding."""
        return sum(len(self.rows[i]) for i in self.steps[step])

    def lr(self, step: int) -> float:
        """Learning rate of a step, at its midpoint in the schedule, as in our training loop."""
        s = self.settings
        return s.lr * lr_factor((step + 0.5) / len(self.steps), s.warmup_ratio, s.schedule)

    def facts(self) -> dict[str, Any]:
        """Counts for the report."""
        positions = sum(len(step) * max(len(self.rows[i]) for i in step) for step in self.steps)
        tokens = sum(self.tokens(i) for i in range(len(self.steps)))
        return {
            "conversations": len(self.rows),
            "tokens": sum(len(row) for row in self.rows),
            "answer_tokens": sum(int(row.mask.sum()) for row in self.rows),
            "steps": len(self.steps),
            "padding": round(1 - tokens / positions, 3),
            "settings": asdict(self.settings),
        }

    def write(self, path: Path) -> Path:
        """Write the JSON file that contenders read."""
        rows = [{"ids": row.token_ids.tolist(), "mask": row.mask.int().tolist()} for row in self.rows]
        path.write_text(json.dumps({"rows": rows, "steps": self.steps, "settings": asdict(self.settings)}))
        return path


def conversations(base: Path, data: Path, max_length: int) -> list[TokenisedConversation]:
    """The data set's conversations, tokenised, masked and truncated for this base model."""
    tokenizer = load_tokenizer(base)
    return load_conversations(data, tokenizer, max_length, eos_ids=sorted(read_eos_ids(base, tokenizer)))[0]
