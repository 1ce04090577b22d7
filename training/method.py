"""The interface of training methods.

A method is an `nn.Module` whose parameters are the draft's. It is called with (settings, base, draft or None), and with
the training conversations if it has `needs_conversations`. It has `draft`, `depth_name`, `weights` of its loss terms,
`features(batch, states=None)` (frozen base, no gradient, cacheable; `states` are the hidden states of
`required_states(batch)` computed by another process), `counts(features)`, `forward(features, seed, scale) -> Outcome`
and `drafted(features) -> Outcome` (hits of a greedy chain by depth, for the accepted length). The loop passes
scale[k] = weight_k / count_k, with the count over all micro-batches of the step. A method whose counts depend on random
choices has `draw(features, seed) -> features`, which adds them to the (cached) features before `counts` and `forward`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from models.checkpoints import is_checkpoint, load_draft_for_training
from models.families import unsupported_reason
from models.head_only import HeadOnlyBase
from models.logits import check_logits
from models.methods import find_method
from models.runtime.forward import FastForward
from models.runtime.linear import PackedLinear
from speculoos.errors import Unsupported
from training.batches import Batch

NO_RANK = 1 << 30
PaddedStates = tuple[Tensor, tuple[Tensor, ...]]
"""As returned by `LoadedBase.forward_hidden`: the head's input [B, L, H], and outputs of layers, each [B, L, …]."""


class RequiredStates(NamedTuple):
    """Hidden states that a method needs: outputs of 0-based `layers` at every real token, and the head's input where
    the mask `positions` [B, L] is True (None: at every real token)."""

    layers: tuple[int, ...] = ()
    positions: Tensor | None = None


class Outcome(NamedTuple):
    """`loss` = Σ scale·loss_sums, with gradient; `loss_sums` [K] of each loss term over its positions, without; `hits`,
    `valid` bool [N, D]: top token correct, position counted. `ranks` int64 [N, D], from `drafted` only: the number of
    tokens the draft ranked above the correct one."""

    loss: Tensor
    loss_sums: Tensor
    hits: Tensor
    valid: Tensor
    ranks: Tensor | None = None


def with_draws(method: Any, features: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """The features with the method's random choices for one step, if it has any."""
    return method.draw(features, seed) if hasattr(method, "draw") else features


def forward_states(base: Any, batch: Batch, required: RequiredStates) -> PaddedStates:
    """Hidden states by one forward of a base model in this process."""
    return base.forward_hidden(batch.input_ids, layers=required.layers, lengths=batch.lengths)


def outcome_of_loss_sums(loss_sums: list[Tensor], scale: Tensor | None, hits: Tensor, valid: Tensor) -> Outcome:
    """Outcome of the differentiable sum of each loss term; the default scale is 1."""
    stacked = torch.stack(loss_sums)
    loss = stacked.sum() if scale is None else (stacked * scale).sum()
    return Outcome(loss, stacked.detach(), hits, valid)


def outcome_of_ranks(ranks: Tensor, valid: Tensor) -> Outcome:
    """Outcome of drafting without a loss."""
    none = torch.zeros((), device=ranks.device)
    return Outcome(none, none[None], ranks == 0, valid, ranks)


def label_ranks(logits: Any, rows: Tensor, columns: Tensor) -> Tensor:
    """How many of `logits(rows)` [N, V] exceed the one at columns [N]; NO_RANK where that is −100. In blocks."""
    ranks = []
    for part, column in zip(rows.split(256), columns.split(256), strict=True):
        scores = logits(part)
        label_scores = scores.gather(1, column.clamp(min=0)[:, None])
        ranks.append((scores > label_scores).sum(1).masked_fill(column < 0, NO_RANK))
    return torch.cat(ranks) if ranks else columns


def make_method(config: Any, base: Any, conversations: Any) -> Any:
    """The method named by `config.method`. Raises Unsupported or BadInput when it does not fit the base."""
    if reason := unsupported_reason(base.config.to_dict()):
        raise Unsupported(f"Cannot train a draft for {base.path}: {reason}")
    record = find_method(config.method)
    if record.check:
        record.check({"layers": base.num_layers, "vocabulary": base.vocab_size}, config)
    cls = record.load("trainer")
    if isinstance(base.forward, FastForward) or any(isinstance(part, PackedLinear) for part in base.model.modules()):
        raise Unsupported(f"{base.path}: this base's weights are packed for a fast forward; load it again to train.")
    if not isinstance(base, HeadOnlyBase):  # otherwise the server has checked
        check_logits(base)
    path = config.draft_path
    from_checkpoint = bool(path) and (config.method != "draft" or is_checkpoint(path))
    draft = load_draft_for_training(path, base, config.method) if from_checkpoint else None
    data = {"conversations": conversations} if getattr(cls, "needs_conversations", False) else {}
    return cls(config, base, draft, **data)
