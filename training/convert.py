"""Training as a library, for people with a loaded transformers model and their own loop or Hugging Face's Trainer.

`convert` gives a module whose forward takes a batch of `collate_rows` and returns {"loss"}; its parameters are the
draft's. Unlike our loop, a foreign one divides each batch's loss by that batch's own count.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from methods import SETTINGS, train_config
from methods.settings import TrainConfig, too_long
from models.base import Base
from models.checkpoints import save_draft
from speculoos.errors import BadInput
from training.batches import Batch, Conversation, DataReport, collate, keep
from training.masks import mask_conversation
from training.method import make_method


def conversations_from(
    rows: Iterable[Mapping[str, Any]], base: Base, max_length: int | None = None
) -> list[Conversation]:
    """Rows with `messages` (or `token_ids` and `loss_spans`) as masked conversations, cut to `max_length` tokens: 2048
    by default, or fewer where the base takes fewer. Raises BadInput for a bad row, or a length the base does not take.
    """
    if max_length is not None and max_length > base.max_length:
        raise too_long(base.max_length, max_length)
    longest = max_length or min(SETTINGS["max_length"].default, base.max_length)
    report = DataReport()
    conversations = (keep(row, mask_conversation(row, base.tokenizer, base.eos_ids), longest, report) for row in rows)
    return [conversation for conversation in conversations if conversation]


def collate_rows(rows: Sequence[Conversation]) -> dict[str, Tensor]:
    """A data collator: padded `input_ids`, `mask` [B, L] and `lengths` [B]."""
    batch = collate(rows)
    return {"input_ids": batch.input_ids, "mask": batch.mask, "lengths": batch.lengths}


def convert(base: Base, method: str, conversations: Sequence[Conversation] = (), **settings: Any) -> "TrainableDraft":
    """A fresh draft for `base`, ready to be trained. `settings` are the method's; `conversations` are looked
    at only to count a draft vocabulary."""
    return TrainableDraft(base, train_config(method, **settings), conversations)


class TrainableDraft(nn.Module):
    """Draft and loss in one module, as Trainer likes it."""

    def __init__(self, base: Base, config: TrainConfig, conversations: Sequence[Conversation]):
        super().__init__()
        torch.manual_seed(config.seed)
        self.settings, self._base = config, base
        self.method = make_method(config, base, conversations)
        self._forwards = 0

    @property
    def draft(self) -> nn.Module:
        return self.method.draft

    def forward(self, input_ids: Tensor, mask: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """{"loss"}: Σ_k weight_k · sum_k / count_k over this batch."""
        if input_ids.device != self._base.device:
            raise BadInput(
                f"The batch is on {input_ids.device} and the frozen base on {self._base.device}; "
                "load the base on the device that trains (for Trainer: TrainingArguments.device)."
            )
        features = self.method.features(Batch(input_ids, mask, lengths))
        self._forwards += 1
        weights = torch.tensor(self.method.weights, device=input_ids.device)
        scale = weights / self.method.counts(features).clamp(min=1)
        return {"loss": self.method(features, self.settings.seed + self._forwards, scale).loss}

    def save(self, folder: str | Path, **info: Any) -> Path:
        """Write a checkpoint that `models.checkpoints.load_draft(folder, base)` restores."""
        return save_draft(folder, self.draft, {"settings": self.settings.to_json(), **info}, self.settings.save_dtype)
