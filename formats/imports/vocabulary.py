"""The draft vocabulary of an EAGLE-3 draft: `d2t` offsets and the `t2d` mask, compared with each other."""

import torch
from torch import Tensor

from formats.imports.base import BaseOutline
from formats.imports.source import DraftSource
from speculoos.errors import BadInput


def draft_vocabulary(source: DraftSource, base: BaseOutline, size: int) -> tuple[Tensor, Tensor]:
    """d2t int64 [size] and t2d bool [V] of a head with `size` rows.

    `d2t` is optional for a head with all tokens, `t2d` always. Raises BadInput if `d2t` is missing, or they contradict
    each other.
    """
    if not source.has("d2t") and size != base.vocab_size:
        raise BadInput(
            f"{source.name}: the tensor d2t is missing: draft_vocab_size is {size} and the base model {base.name} has "
            f"{base.vocab_size} tokens, so the draft's tokens are unknown."
        )
    d2t = source.take("d2t", (size,)).long() if source.has("d2t") else torch.zeros(size, dtype=torch.int64)
    if size == base.vocab_size and torch.any(d2t):
        raise BadInput(f"{source.name}: d2t is not zero although the draft has all {size} tokens of the base model.")
    mask = _mask(source, base, torch.arange(size) + d2t)
    _check_t2d(source, mask)
    return d2t, mask


def _mask(source: DraftSource, base: BaseOutline, ids: Tensor) -> Tensor:
    """bool [V]: whether a token is in the draft's vocabulary."""
    if int(ids.min()) < 0 or int(ids.max()) >= base.vocab_size:
        raise BadInput(
            f"{source.name}: d2t maps to token {int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())}, but the "
            f"base model {base.name} has {base.vocab_size}; d2t must contain offsets: draft id i is token i + d2t[i]."
        )
    if len(ids.unique()) != len(ids):
        raise BadInput(f"{source.name}: d2t maps two draft ids to the same token; download the draft again.")
    mask = torch.zeros(base.vocab_size, dtype=torch.bool)
    mask[ids] = True
    return mask


def _check_t2d(source: DraftSource, mask: Tensor) -> None:
    if not source.has("t2d"):
        return
    stored = source.take("t2d", tuple(mask.shape)).bool()
    unused = mask.all() or stored.all()  # a whole vocabulary, or the initial value of a trainer
    if not unused and not torch.equal(stored, mask):
        raise BadInput(f"{source.name}: t2d contains other tokens than d2t; download the draft again.")
