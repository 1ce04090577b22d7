"""Logits of a base from hidden states, as in its forward: the LM head, in some families with bias, scale or cap."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.families import IDENTITY_RULE, LogitRule
from speculoos.errors import Unsupported

CHECKED_TOKENS = 4
"""Number of tokens on which a base's logits are compared with those of transformers."""
TOLERANCE = 0.02
"""Largest difference relative to the largest logit, which allows for rounding to half precision."""


def apply_logit_rule(product: Tensor, rule: LogitRule) -> Tensor:
    """Logits [..., V] from the output [..., V] of the LM head; `product` itself for the plain rule."""
    if rule.scale != 1.0:
        product = product * rule.scale
    return product if not rule.cap else torch.tanh(product / rule.cap) * rule.cap


def apply_logit_rule_(product: Tensor, rule: LogitRule) -> Tensor:
    """In-place `apply_logit_rule`."""
    if rule.scale != 1.0:
        product.mul_(rule.scale)
    return product if not rule.cap else product.div_(rule.cap).tanh_().mul_(rule.cap)


def logit_rule_derivative(logits: Tensor, rule: LogitRule) -> Tensor | float:
    """Derivative of `logits` with respect to the output of the LM head: scale · (1 − (logits / cap)²)."""
    return rule.scale if not rule.cap else (logits / rule.cap).square_().neg_().add_(1.0).mul_(rule.scale)


@dataclass(frozen=True, eq=False)
class Head:
    """An LM head: weight [V, H], optional bias [V], and logit rule."""

    weight: Tensor
    bias: Tensor | None = None
    rule: LogitRule = IDENTITY_RULE

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., H] → logits [..., V]."""
        return apply_logit_rule(F.linear(x, self.weight, self.bias), self.rule)

    def rows(self, ids: Tensor) -> "Head":
        """The head restricted to tokens `ids`."""
        ids = ids.to(self.weight.device)
        return replace(self, weight=self.weight[ids], bias=None if self.bias is None else self.bias[ids])

    def to(self, dtype: torch.dtype) -> "Head":
        """In `dtype`, detached; shares tensors that have this dtype."""
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        return replace(self, weight=self.weight.detach().to(dtype), bias=bias)

    def folded(self) -> "Head":
        """As a plain linear layer: scale folded into weight and bias, cap dropped; shares tensors without a scale."""
        if self.rule.scale == 1.0:
            return replace(self, rule=IDENTITY_RULE)
        bias = None if self.bias is None else self.bias * self.rule.scale
        return Head(self.weight * self.rule.scale, bias)


@torch.no_grad()
def check_logits(base: Any) -> None:
    """Raise Unsupported when `base.logits` differs from the logits of the transformers forward, checked with one short
    forward, so that no draft is trained on wrong logits."""
    ids = torch.arange(CHECKED_TOKENS, device=base.device)[None] % base.vocab_size
    hidden, _ = base.forward_hidden(ids)
    expected, actual = base.model(input_ids=ids, use_cache=False).logits.float(), base.logits(hidden).float()
    if expected.shape != actual.shape or not (expected - actual).abs().max() <= TOLERANCE * expected.abs().max():
        raise Unsupported(
            f"{base.path}: {type(base.model).__name__} computes its logits from its head's output in an unknown way, "
            "so a draft would learn wrong logits; choose another base."
        )
