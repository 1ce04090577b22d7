"""The draft vocabulary of an EAGLE-3 draft: `d2t` offsets and the `t2d` mark, checked against each other."""

import torch
from torch import Tensor

from formats.imports.base import BaseOutline
from formats.imports.source import DraftSource
from speculoos.errors import BadInput


def draft_vocabulary(source: DraftSource, base: BaseOutline, size: int) -> tuple[Tensor, Tensor]:
    """d2t int64 [size] and t2d bool [V] of a head with `size` rows.

    `d2t` may be missing where the head has all tokens, `t2d` always. Raises BadInput where they are needed and
    missing, or contradict each other.
    """
    if not source.has("d2t") and size != base.vocab_size:
        raise BadInput(
            f"{source.name}: the tensor d2t is missing: draft_vocab_size is {size} and the base {base.name} has "
            f"{base.vocab_size} tokens, so nothing says which tokens the draft knows."
        )
    d2t = source.take("d2t", (size,)).long() if source.has("d2t") else torch.zeros(size, dtype=torch.int64)
    if size == base.vocab_size and torch.any(d2t):
        raise BadInput(f"{source.name}: d2t is not zero although the draft has all {size} tokens of the base.")
    known = _known(source, base, torch.arange(size) + d2t)
    _check_mark(source, known)
    return d2t, known


def _known(source: DraftSource, base: BaseOutline, ids: Tensor) -> Tensor:
    """bool [V]: which tokens the draft has."""
    if int(ids.min()) < 0 or int(ids.max()) >= base.vocab_size:
        raise BadInput(
            f"{source.name}: d2t leads to token {int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())}, and the "
            f"base {base.name} has {base.vocab_size}; its values are offsets: draft id i is token i + d2t[i]."
        )
    if len(ids.unique()) != len(ids):
        raise BadInput(f"{source.name}: d2t leads to one token from two draft ids; fetch the draft again.")
    known = torch.zeros(base.vocab_size, dtype=torch.bool)
    known[ids] = True
    return known


def _check_mark(source: DraftSource, known: Tensor) -> None:
    if not source.has("t2d"):
        return
    given = source.take("t2d", tuple(known.shape)).bool()
    unused = known.all() or given.all()  # of a whole vocabulary, or as it was before one was counted
    if not unused and not torch.equal(given, known):
        raise BadInput(f"{source.name}: t2d marks other tokens than d2t leads to; fetch the draft again.")
