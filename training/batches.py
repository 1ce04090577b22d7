"""Dataset folder → conversations with loss masks → batches of similar length, in an order fixed by the seed.

Works on dataset files and token ids, without a model. Truncated, dropped and used rows are counted in DataStats.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.identity import read_json
from models.methods.settings import TrainConfig
from speculoos.errors import BadInput
from speculoos.reporting import Reporter
from training.tokenizing import tokenize_dataset

COUNTED_TOGETHER = 512  # conversations per call of bincount, which fills a table of the vocabulary's size each time
HINT = "generate the data with this base model, or train a draft for the base model that generated the data."


@dataclass(frozen=True, eq=False)
class TokenizedConversation:
    """One conversation: `token_ids` int32 [n], `mask` bool [n] (True: written by the base model, in the loss)."""

    id: str
    token_ids: Tensor
    mask: Tensor
    group: str  # hash of the first prompt: rows with the same prompt are on the same side of the held-out split
    category: str = ""

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass
class DataStats:
    """Counts of used, truncated and dropped conversations of the training data."""

    conversations: int = 0
    tokens: int = 0
    loss_tokens: int = 0
    truncated: int = 0
    truncated_tokens: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    mask_sources: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: "DataStats") -> "DataStats":
        return DataStats(**{name: value + getattr(other, name) for name, value in vars(self).items()})

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "dropped": dict(self.dropped), "mask_sources": dict(self.mask_sources)}

    def sentence(self) -> str:
        text = f"{self.conversations} conversations, {self.tokens} tokens, {self.loss_tokens} of them in the loss"
        if self.truncated:
            text += f"; {self.truncated} cut off ({self.truncated_tokens} tokens left out)"
        if self.dropped:
            text += "; dropped: " + ", ".join(f"{n} × {reason}" for reason, n in self.dropped.most_common())
        return text + "."


@dataclass(frozen=True, eq=False)
class Batch:
    """Right-padded rows. `input_ids` int64 [B, L], `mask` bool [B, L], `lengths` int64 [B]; `index` of the batch. A
    causal model needs no attention mask: padding comes after all real tokens."""

    input_ids: Tensor
    mask: Tensor
    lengths: Tensor
    index: int = 0

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.input_ids.to(device), self.mask.to(device), self.lengths.to(device), self.index)


def load_conversations(
    folder: str | Path,
    tokenizer: Any,
    max_length: int,
    vocab_size: int = 0,
    eos_ids: Sequence[int] = (),
    tokenizer_sha256: str = "",
    reporter: Reporter | None = None,
) -> tuple[list[TokenizedConversation], DataStats]:
    """All usable conversations, truncated to `max_length` tokens and memory-mapped, and their statistics. Raises
    BadInput when the data's token ids come from another tokenizer, or when no conversation is usable."""
    data_tokenizer = read_json(Path(folder) / "dataset.json").get("tokenizer_sha256", "")
    other_tokenizer = bool(data_tokenizer and tokenizer_sha256 and data_tokenizer != tokenizer_sha256)
    result = tokenize_dataset(folder, tokenizer, eos_ids, reporter)
    stats, conversations = DataStats(), []
    for tokens in result.read():
        if tokens.largest_id >= 0 and other_tokenizer:
            raise BadInput(f"The data in {folder} was made with another tokenizer than the base's; {HINT}")
        if vocab_size and tokens.largest_id >= vocab_size:
            raise BadInput(
                f"The data in {folder} holds token id {tokens.largest_id}, the base has {vocab_size}; {HINT}"
            )
        stats.dropped.update(tokens.dropped.values())
        rows = (
            make_conversation(*tokens.tokens(index), info, max_length, stats) for index, info in enumerate(tokens.rows)
        )
        conversations += [row for row in rows if row]
    if not conversations:
        reasons = ", ".join(f"{n} × {reason}" for reason, n in stats.dropped.most_common(3)) or "it has no rows"
        raise BadInput(f"No conversation in {folder} can be trained on: {reasons}.")
    return conversations, stats


def split_held_out(
    conversations: Sequence[TokenizedConversation], fraction: float, max_groups: int, seed: int
) -> tuple[list[TokenizedConversation], list[TokenizedConversation]]:
    """(training, held out), split by prompt; one at least is held out if there are two. Independent of the order."""
    groups = sorted({c.group for c in conversations}, key=lambda g: hashlib.sha256(f"{seed}:{g}".encode()).digest())
    count = min(round(len(groups) * fraction), max_groups, len(groups) - 1)
    if fraction and max_groups and len(groups) > 1:
        count = max(count, 1)
    held_out = set(groups[: max(count, 0)])
    return [c for c in conversations if c.group not in held_out], [c for c in conversations if c.group in held_out]


def make_batches(conversations: Sequence[TokenizedConversation], batch_tokens: int, seed: int = 0) -> list[list[int]]:
    """Indices grouped by length with rows × longest ≤ batch_tokens (or one row). The seed shuffles ties."""
    rng = random.Random(seed)
    order = sorted(range(len(conversations)), key=lambda i: (len(conversations[i]), rng.random()))
    batches: list[list[int]] = []
    for i in order:  # lengths ascend, so the newest row is the longest
        if batches and len(conversations[i]) * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def epoch_order(count: int, epoch: int, seed: int) -> list[int]:
    """A shuffled order of `count` batches for one epoch; a pure function of its arguments."""
    order = list(range(count))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def collate(conversations: Sequence[TokenizedConversation], index: int = 0) -> Batch:
    """Right-pad rows to one Batch. Padding may be any id: it is not in the loss and never attended to."""
    lengths = torch.tensor([len(c) for c in conversations])
    shape = (len(conversations), int(lengths.max()))
    input_ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.bool)
    for row, conversation in enumerate(conversations):
        input_ids[row, : len(conversation)] = conversation.token_ids.long()
        mask[row, : len(conversation)] = conversation.mask
    return Batch(input_ids, mask, lengths, index)


def make_conversation(
    ids: Tensor, mask: Tensor, info: Mapping[str, str], max_length: int, stats: DataStats
) -> TokenizedConversation | None:
    """A row as a conversation truncated to `max_length`, counted in `stats`; None when no token is in the loss."""
    if bool(mask.all()):
        stats.dropped["all tokens are in the loss, so there is no prompt"] += 1
        return None
    if len(ids) > max_length:
        stats.truncated += 1
        stats.truncated_tokens += len(ids) - max_length
        ids, mask = ids[:max_length], mask[:max_length]
    if not (counted := int(mask.sum())):
        stats.dropped["no response token is in the loss"] += 1
        return None
    stats.conversations += 1
    stats.tokens += len(ids)
    stats.loss_tokens += counted
    stats.mask_sources[info["mask_source"]] += 1
    return TokenizedConversation(info["id"], ids, mask, info["group"], info["category"])


def choose_vocabulary(
    conversations: Sequence[TokenizedConversation], config: TrainConfig, base: Any
) -> tuple[Tensor | None, str]:
    """Ascending token ids, int64 [size], and a sentence on their coverage; (None, "") for all tokens of the base model.
    Ends of turn are always included."""
    if not (config.draft_vocab_size or config.draft_vocab_coverage):
        return None, ""
    if not conversations:
        raise BadInput("draft_vocab_size and draft_vocab_coverage need conversations, whose tokens are counted.")
    vocab_size = base.vocab_size
    if config.draft_vocab_size > vocab_size:
        raise BadInput(
            f"draft_vocab_size: expected at most {vocab_size}, the tokens of this base model, got "
            f"{config.draft_vocab_size}."
        )
    counts = torch.zeros(vocab_size, dtype=torch.int64)  # how often each token counts in the loss
    for first in range(0, len(conversations), COUNTED_TOGETHER):
        answer_tokens = [c.token_ids[c.mask] for c in conversations[first : first + COUNTED_TOGETHER]]
        counts += torch.bincount(torch.cat(answer_tokens).long(), minlength=vocab_size)
    order = torch.sort(counts, descending=True, stable=True).indices
    total = max(int(counts.sum()), 1)
    size = config.draft_vocab_size or vocab_size
    if config.draft_vocab_coverage:
        covered = counts[order].double().cumsum(0) / total
        size = int(torch.searchsorted(covered, config.draft_vocab_coverage).clamp(max=vocab_size - 1)) + 1
        size = min(-(-size // 64) * 64, vocab_size)  # rows fill whole cache lines
    required_ids = torch.tensor(sorted(i for i in base.eos_ids if i < vocab_size), dtype=torch.int64)
    ids = torch.cat([required_ids, order[~torch.isin(order, required_ids)]])[:size].sort().values
    return ids, f"Draft vocabulary of {size} tokens covers {int(counts[ids].sum()) / total:.2%} of the answers."
