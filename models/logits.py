"""From hidden states to logits, as a base's own forward does it: a matrix, in some families with a bias, a scale or a
cap. Whatever turns hidden states into a base's logits goes through here.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from models.families import PLAIN, LogitRule
from speculoos.errors import Unsupported

TRIED = 4
"""Tokens on which a base's logits are compared with transformers'."""
TOLERANCE = 0.02
"""Largest difference, as a part of the largest logit, that rounding to half precision explains."""


def bend(product: Tensor, rule: LogitRule) -> Tensor:
    """Logits [..., V] of the product [..., V] with a head: `product` itself where the rule is plain."""
    if rule.scale != 1.0:
        product = product * rule.scale
    return product if not rule.cap else torch.tanh(product / rule.cap) * rule.cap


def bend_(product: Tensor, rule: LogitRule) -> Tensor:
    """`bend`, in place."""
    if rule.scale != 1.0:
        product.mul_(rule.scale)
    return product if not rule.cap else product.div_(rule.cap).tanh_().mul_(rule.cap)


def slope(logits: Tensor, rule: LogitRule) -> Tensor | float:
    """Derivative of bent `logits` by the product they were made of: scale · (1 − (logits / cap)²)."""
    return rule.scale if not rule.cap else (logits / rule.cap).square_().neg_().add_(1.0).mul_(rule.scale)


@dataclass(frozen=True, eq=False)
class Head:
    """Rows `weight` [V, H] and a bias [V] or none, and what becomes of their product."""

    weight: Tensor
    bias: Tensor | None = None
    rule: LogitRule = PLAIN

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., H] → logits [..., V]."""
        return bend(F.linear(x, self.weight, self.bias), self.rule)

    def rows(self, ids: Tensor) -> "Head":
        """The head of tokens `ids` alone."""
        ids = ids.to(self.weight.device)
        return replace(self, weight=self.weight[ids], bias=None if self.bias is None else self.bias[ids])

    def to(self, dtype: torch.dtype) -> "Head":
        """In another precision, without a gradient; the same tensors where it is theirs."""
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        return replace(self, weight=self.weight.detach().to(dtype), bias=bias)

    def folded(self) -> "Head":
        """As a plain linear layer: the scale is in weight and bias, a cap is left out; the same tensors without one."""
        if self.rule.scale == 1.0:
            return replace(self, rule=PLAIN)
        bias = None if self.bias is None else self.bias * self.rule.scale
        return Head(self.weight * self.rule.scale, bias)


@torch.no_grad()
def check_logits(base: Any) -> None:
    """Raise Unsupported where a base's forward makes other logits of its hidden states than `base.logits`, so that no
    draft learns from them: one short forward, by transformers."""
    ids = torch.arange(TRIED, device=base.device)[None] % base.vocab_size
    hidden, _ = base.forward_hidden(ids)
    expected, actual = base.model(input_ids=ids, use_cache=False).logits.float(), base.logits(hidden).float()
    if expected.shape != actual.shape or not (expected - actual).abs().max() <= TOLERANCE * expected.abs().max():
        raise Unsupported(
            f"{base.path}: what {type(base.model).__name__} makes of its head's output is not known here, so a draft "
            "would learn other logits than the base's; choose another base."
        )
