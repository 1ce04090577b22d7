"""The draft vocabulary: the tokens that a draft may propose, chosen by their frequency in the answers.

Other tokens are never drafted, so their positions are never accepted; coverage is the fraction of answer tokens in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.methods.settings import TrainConfig
from speculoos.errors import BadInput
from training.batches import TokenisedConversation

CURVE = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
COUNTED_TOGETHER = 512
"""Conversations per call of bincount, which fills a table of the vocabulary's size each time."""


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """`ids` int64 [size], ascending token ids of the base; `coverage` of answer tokens; `curve`: (size, coverage)."""

    ids: Tensor
    coverage: float
    curve: list[tuple[int, float]]

    def sentence(self) -> str:
        shown = ", ".join(f"{size}: {part:.1%}" for size, part in self.curve)
        return f"Draft vocabulary of {len(self.ids)} tokens covers {self.coverage:.2%} of the answers ({shown})."


def choose_vocabulary(
    conversations: Sequence[TokenisedConversation], config: TrainConfig, vocab_size: int, always: Sequence[int] = ()
) -> DraftVocabulary:
    """Choose by `draft_vocab_size`, by `draft_vocab_coverage`, or all tokens. Ties in frequency go to the lower id.

    `always` (end-of-turn tokens) are included regardless of frequency.
    """
    if config.draft_vocab_size > vocab_size:
        limit = f"this base has {vocab_size} tokens"
        raise BadInput(f"draft_vocab_size: {limit}, got {config.draft_vocab_size}; give {vocab_size} or less.")
    counts = token_counts(conversations, vocab_size)
    order = torch.sort(counts, descending=True, stable=True).indices
    covered = counts[order].double().cumsum(0) / max(int(counts.sum()), 1)
    size = config.draft_vocab_size or vocab_size
    if config.draft_vocab_coverage:
        size = int(torch.searchsorted(covered, config.draft_vocab_coverage).clamp(max=vocab_size - 1)) + 1
        size = min(-(-size // 64) * 64, vocab_size)  # rows fill whole cache lines
    order = _first(order, [i for i in always if i < vocab_size])
    ids = order[:size].sort().values
    curve = [(n, float(covered[n - 1])) for n in CURVE if n < vocab_size] + [(vocab_size, 1.0)]
    return DraftVocabulary(ids, float(counts[ids].sum() / max(int(counts.sum()), 1)), curve)


def token_counts(conversations: Sequence[TokenisedConversation], vocab_size: int) -> Tensor:
    """How often each token counts in the loss: int64 [vocab_size]."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for first in range(0, len(conversations), COUNTED_TOGETHER):
        some = [c.token_ids[c.mask] for c in conversations[first : first + COUNTED_TOGETHER]]
        counts += torch.bincount(torch.cat(some).long(), minlength=vocab_size)
    return counts


def _first(order: Tensor, always: Sequence[int]) -> Tensor:
    if not always:
        return order
    front = torch.tensor(sorted(set(always)))
    return torch.cat([front, order[~torch.isin(order, front)]])
