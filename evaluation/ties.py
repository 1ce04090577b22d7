"""Near ties: where two ways to compute the same logits may rightly pick different tokens.

A tree is scored in one forward and plain decoding one token at a time; their sums round differently, so two logits
that lie closer than rounding may change places. Anything farther apart is a fault.
"""

from collections.abc import Sequence

from decoding.target import Target, common_prefix

TIE = 1e-3


def gap_at(target: Target, prompt: Sequence[int], plain: Sequence[int], speculative: Sequence[int]) -> float | None:
    """By how much the logit of plain decoding's token exceeds that of the other's where the two answers first part.

    The logits are those plain decoding had there: its tokens again, one a forward. None when one answer had ended.
    Empties the target's cache of what it held.
    """
    at = first_difference(plain, speculative)
    if at is None or at >= min(len(plain), len(speculative)):
        return None
    target.rewind(0)
    logits = target.prefill(prompt).logits
    for token in plain[:at]:
        logits = target.extend([token]).logits
    row = logits[-1].float()
    return float(row[plain[at]] - row[speculative[at]])


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """First index where two answers differ, a missing token included; None when they are equal."""
    at = common_prefix(a, b)
    return None if at == len(a) == len(b) else at
