"""Texts for the comparison of logits: a few prompts with the base model's greedy continuation and its hidden states."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from models.chat import render
from speculoos.reporting import check_current_stop

PROMPTS = ("Why is the sky blue?", "Write one sentence about a fox.", "1 2 3 4 5 and so on:")
CONTINUATION_TOKENS = 16
"""Tokens that the base model generates after each prompt."""
ANCHORS = (1, 6, 11)
"""Positions from which chains are drafted, counted from the prompt's last token."""
DEPTH = 4
"""Number of tokens in a chain."""


@dataclass(frozen=True)
class Passage:
    """`ids`: n tokens of prompt and continuation. `prompt`: number of prompt tokens. `hidden` [n, H]: the input of the
    base model's lm_head. `outputs`: output [n, H] of each layer, by its 0-based index."""

    ids: list[int]
    prompt: int
    hidden: torch.Tensor
    outputs: dict[int, torch.Tensor]

    @property
    def anchors(self) -> list[int]:
        """Positions t whose next token t + 1 is known; a chain begins at t + 2."""
        return [self.prompt - 1 + offset for offset in ANCHORS]

    def accepted(self, anchor: int, drafted: Sequence[int]) -> int:
        """How many tokens drafted for positions anchor + 2, … match the base model's continuation."""
        continuation = self.ids[anchor + 2 :]
        return next((i for i, (a, b) in enumerate(zip(drafted, continuation, strict=False)) if a != b), len(drafted))

    def side_by_side(self, layers: Sequence[int], rows: int) -> torch.Tensor:
        """Outputs of `layers` at the first `rows` positions, concatenated: [rows, len(layers) · H]."""
        return torch.cat([self.outputs[layer][:rows] for layer in layers], -1)


@torch.no_grad()
def passages(base: Any, layers: Sequence[int]) -> Iterator[Passage]:
    """One passage for each of PROMPTS, with the outputs of `layers`. The base model is in float32."""
    for text in PROMPTS:
        prompt = render(base.tokenizer, [{"role": "user", "content": text}])
        ids = list(prompt)
        for _ in range(CONTINUATION_TOKENS):
            check_current_stop()
            hidden, _ = base.forward_hidden(torch.tensor([ids], device=base.device))
            ids.append(int(base.logits(hidden[0, -1]).argmax()))
        numbers = sorted(set(layers))
        hidden, outputs = base.forward_hidden(torch.tensor([ids], device=base.device), layers=numbers)
        states = {layer: state[0] for layer, state in zip(numbers, outputs, strict=True)}
        yield Passage(ids, len(prompt), hidden[0], states)
