"""The draft vocabulary: the tokens that a draft may propose, chosen by their frequency in the answers.

Other tokens are never drafted, so their positions are never accepted; coverage is the fraction of answer tokens in it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from models.methods.settings import TrainConfig
from speculoos.errors import BadInput
from training.batches import TokenisedConversation

COUNTED_TOGETHER = 512  # conversations per call of bincount, which fills a table of the vocabulary's size each time


def choose_vocabulary(
    conversations: Sequence[TokenisedConversation], config: TrainConfig, base: Any
) -> tuple[Tensor, str]:
    """Ascending token ids of the base, int64 [size], and a sentence on their coverage. Ties in frequency go to the
    lower id; end-of-turn tokens are always included."""
    vocab_size = base.vocab_size
    if config.draft_vocab_size > vocab_size:
        limit = f"this base has {vocab_size} tokens"
        raise BadInput(f"draft_vocab_size: {limit}, got {config.draft_vocab_size}; give {vocab_size} or less.")
    counts = token_counts(conversations, vocab_size)
    order = torch.sort(counts, descending=True, stable=True).indices
    total = max(int(counts.sum()), 1)
    size = config.draft_vocab_size or vocab_size
    if config.draft_vocab_coverage:
        covered = counts[order].double().cumsum(0) / total
        size = int(torch.searchsorted(covered, config.draft_vocab_coverage).clamp(max=vocab_size - 1)) + 1
        size = min(-(-size // 64) * 64, vocab_size)  # rows fill whole cache lines
    always = torch.tensor(sorted(i for i in base.eos_ids if i < vocab_size), dtype=torch.int64)
    ids = torch.cat([always, order[~torch.isin(order, always)]])[:size].sort().values
    return ids, f"Draft vocabulary of {size} tokens covers {int(counts[ids].sum()) / total:.2%} of the answers."


def token_counts(conversations: Sequence[TokenisedConversation], vocab_size: int) -> Tensor:
    """How often each token counts in the loss: int64 [vocab_size]."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for first in range(0, len(conversations), COUNTED_TOGETHER):
        some = [c.token_ids[c.mask] for c in conversations[first : first + COUNTED_TOGETHER]]
        counts += torch.bincount(torch.cat(some).long(), minlength=vocab_size)
    return counts
