"""Near ties: positions where two ways to compute the same logits may legitimately select different tokens.

A tree is verified in one forward, plain decoding computes one token at a time; sums round differently, so the order of
two logits within the rounding error may change. A larger gap is a bug.
"""

from collections.abc import Sequence

from decoding.target import Target, common_prefix

TIE = 1e-3


def gap_at(target: Target, prompt: Sequence[int], plain: Sequence[int], speculative: Sequence[int]) -> float | None:
    """Logit of plain decoding's token minus that of the other's token, where the two answers first differ.

    The logits are recomputed as in plain decoding, one token per forward. None when one answer had ended. Overwrites
    the target's cache.
    """
    index = first_difference(plain, speculative)
    if index is None or index >= min(len(plain), len(speculative)):
        return None
    target.rewind(0)
    logits = target.prefill(prompt).logits
    for token in plain[:index]:
        logits = target.extend([token]).logits
    row = logits[-1].float()
    return float(row[plain[index]] - row[speculative[index]])


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """First index where two answers differ (a missing token counts); None if equal."""
    index = common_prefix(a, b)
    return None if index == len(a) == len(b) else index
