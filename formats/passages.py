"""Texts that a proof is made on: a few prompts with the base's own greedy continuation, and its hidden states there."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from models.chat import render
from speculoos.reporting import heed

PROMPTS = ("Why is the sky blue?", "Write one sentence about a fox.", "1 2 3 4 5 and so on:")
CONTINUED = 16
"""Tokens of the base's own after each prompt."""
ANCHORS = (1, 6, 11)
"""Where chains are drafted from: so many tokens after the prompt's last one."""
DEPTH = 4
"""Tokens of a chain."""


@dataclass(frozen=True)
class Passage:
    """`ids`: prompt and continuation, n tokens. `hidden` [n, H]: the input of the base's head. `outputs`: by 0-based
    layer, its output [n, H]."""

    ids: list[int]
    prompt: int
    hidden: torch.Tensor
    outputs: dict[int, torch.Tensor]

    @property
    def anchors(self) -> list[int]:
        """Places t whose next token t + 1 is known and after which a chain begins at t + 2."""
        return [self.prompt - 1 + after for after in ANCHORS]

    def accepted(self, anchor: int, drafted: Sequence[int]) -> int:
        """How many of the tokens drafted for places anchor + 2, … the base wrote itself."""
        continuation = self.ids[anchor + 2 :]
        return next((i for i, (a, b) in enumerate(zip(drafted, continuation, strict=False)) if a != b), len(drafted))

    def side_by_side(self, layers: Sequence[int], rows: int) -> torch.Tensor:
        """Outputs of `layers`, the first `rows` places: [rows, len(layers) · H]."""
        return torch.cat([self.outputs[layer][:rows] for layer in layers], -1)


@torch.no_grad()
def passages(base: Any, layers: Sequence[int]) -> Iterator[Passage]:
    """One for each of PROMPTS, with the outputs of `layers`. The base is in float32."""
    for text in PROMPTS:
        prompt = render(base.tokenizer, [{"role": "user", "content": text}])
        ids = list(prompt)
        for _ in range(CONTINUED):
            heed()
            hidden, _ = base.forward_hidden(torch.tensor([ids], device=base.device))
            ids.append(int(base.logits(hidden[0, -1]).argmax()))
        numbers = sorted(set(layers))
        hidden, outputs = base.forward_hidden(torch.tensor([ids], device=base.device), layers=numbers)
        states = {layer: state[0] for layer, state in zip(numbers, outputs, strict=True)}
        yield Passage(ids, len(prompt), hidden[0], states)
