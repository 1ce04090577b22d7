"""Near ties: where two ways to compute the same logits may rightly pick different tokens.

A tree is scored in one forward and plain decoding one token at a time; their sums round differently, so two logits
that lie closer than rounding may change places. Anything farther apart is a fault.
"""

from collections.abc import Sequence
from typing import Any

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import Target
from runtime.interface import Scored

TIE = 1e-3


class Watched:
    """A forward that notes the difference of the two best logits after each last row."""

    def __init__(self, forward: Any):
        self.forward, self.name, self.gaps = forward, forward.name, []

    def __call__(self, *args: Any, **kwargs: Any) -> Scored:
        scored = self.forward(*args, **kwargs)
        best = scored.logits[-1].float().topk(2).values
        self.gaps.append(float(best[0] - best[1]))
        return scored


def gap_at(target: Target, prompt: Sequence[int], index: int) -> float | None:
    """Difference of plain decoding's two best logits where it chose new token `index`: the plain run done again.

    None when plain decoding ended before that token.
    """
    watched = Watched(target.forward)
    target.rewind(0)
    target.forward = watched
    try:
        for step in generate(target, make_drafter(target), prompt, GenerateConfig(max_tokens=index + 1)):
            if step.kind == "prefill":
                del watched.gaps[:-1]  # a long prompt takes several forwards; the last one chose token 0
    finally:
        target.forward = watched.forward
    return watched.gaps[index] if index < len(watched.gaps) else None
