"""What the loop asks of a training method.

A method is an `nn.Module` whose parameters are the draft's, with `draft`, `names` and `weights` of its loss terms,
`features(batch, states=None)` (frozen base, no gradient, may be kept; `states` of the base that came from elsewhere
because `wanted(batch)` said so, see training/source.py), `counts(features)`,
`forward(features, seed, scale) -> Outcome` and `drafted(features) -> Outcome` (hits of a greedy chain by depth, for
the accepted length). The loop passes scale[k] = weight_k / count_k, the count over all micro-batches of the step, so
that losses divide by what counts.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.checkpoints import draft_to_train, is_checkpoint
from models.families import why_not
from models.frame import Frame
from models.logits import check_logits
from models.methods import find_method
from models.runtime.forward import FastForward
from models.runtime.linear import PackedLinear
from speculoos.errors import Unsupported

NO_RANK = 1 << 30


class Outcome(NamedTuple):
    """`loss` = Σ scale·sums, with gradient; `sums` [K] of each loss term over its places, without; `hits`, `valid` bool
    [N, D]: best token right, place counts.

    `ranks` int64 [N, D], from `drafted` only: how many tokens the draft held likelier than the right one.
    """

    loss: Tensor
    sums: Tensor
    hits: Tensor
    valid: Tensor
    ranks: Tensor | None = None


def outcome_of_sums(sums: list[Tensor], scale: Tensor | None, hits: Tensor, valid: Tensor) -> Outcome:
    """Outcome of differentiable sums; without a scale each counts as it is."""
    stacked = torch.stack(sums)
    loss = stacked.sum() if scale is None else (stacked * scale).sum()
    return Outcome(loss, stacked.detach(), hits, valid)


def outcome_of_ranks(ranks: Tensor, valid: Tensor) -> Outcome:
    """Outcome of drafting without a loss."""
    none = torch.zeros((), device=ranks.device)
    return Outcome(none, none[None], ranks == 0, valid, ranks)


def label_ranks(logits: Any, rows: Tensor, columns: Tensor) -> Tensor:
    """For each of `rows` [N, …], how many of `logits(part)` [n, V] exceed the one at columns [N]; a large number where
    the column is −100. Some rows at a time."""
    ranks = []
    for part, column in zip(rows.split(256), columns.split(256), strict=True):
        scores = logits(part)
        own = scores.gather(1, column.clamp(min=0)[:, None])
        ranks.append((scores > own).sum(1).masked_fill(column < 0, NO_RANK))
    return torch.cat(ranks) if ranks else columns


def make_method(config: Any, base: Any, conversations: Any) -> Any:
    """The method named by `config.method`, with a fresh draft for `base` or the one in `config.draft_path`, which keeps
    its shape. Raises Unsupported or BadInput where the base cannot take it."""
    if reason := why_not(base.config.to_dict()):
        raise Unsupported(f"{base.path} cannot be trained for: {reason}")
    cls = find_method(config.method).load("trainer")
    if isinstance(base.forward, FastForward) or any(isinstance(part, PackedLinear) for part in base.model.modules()):
        raise Unsupported(f"{base.path}: this base's weights are packed for a fast forward; load it again to train.")
    if not isinstance(base, Frame):  # who runs it has checked
        check_logits(base)
    given = config.draft_path
    started = bool(given) and (config.method != "draft" or is_checkpoint(given))
    draft = draft_to_train(given, base, config.method) if started else None
    prepare = getattr(cls, "prepare", None)
    return prepare(config, base, conversations, draft) if prepare else cls(config, base, draft)
