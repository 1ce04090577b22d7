"""The messages of the hidden states protocol between a training and a server that runs the base model.

    GET  /v1/base           → JSON: which base, its sizes, its limits (`base_info` in training/hidden_states/server.py)
    POST /v1/hidden_states  ← JSON: {"base_sha256", "rows", "layers", "positions"}   → safetensors: hidden, aux

Values are sent as they are in memory (bfloat16 stays bfloat16), without padding; nothing is pickled.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from speculoos.errors import BadInput

PROTOCOL = 2
MAX_VALUE_BYTES = 4  # maximum bytes of one value
MEDIA_TYPE = "application/vnd.safetensors"
MIN_LAYER_LIMIT = 3
"""Layers that may be requested of any base model: the three of an EAGLE-3 draft may coincide in a small model."""


@dataclass(frozen=True, eq=False)
class StatesRequest:
    """Hidden states of rows of token ids, each [n]: the outputs of 0-based `layers` at every token, and the head's
    input at the ascending `positions` [m] of each row (None: at every token)."""

    rows: tuple[Tensor, ...]
    layers: tuple[int, ...] = ()
    positions: tuple[Tensor, ...] | None = None

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))

    @property
    def counts(self) -> list[int]:
        """Number of positions of each row."""
        return [*map(len, self.rows if self.positions is None else self.positions)]

    def num_values(self, hidden_size: int) -> int:
        """How many values the response has, for a base model with hidden size `hidden_size`."""
        return (sum(self.counts) + self.tokens * len(self.layers)) * hidden_size

    def to_json(self, base_sha256: str = "") -> dict[str, Any]:
        positions = None if self.positions is None else [row.tolist() for row in self.positions]
        rows = [row.tolist() for row in self.rows]
        return {"base_sha256": base_sha256, "rows": rows, "layers": list(self.layers), "positions": positions}


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """`hidden` [positions of all rows, H], the head's input; `aux` [tokens of all rows, layers · H], concatenated."""

    hidden: Tensor
    aux: Tensor

    def to_bytes(self) -> bytes:
        return save({"hidden": self.hidden.cpu().contiguous(), "aux": self.aux.cpu().contiguous()})

    def by_row(self, request: StatesRequest) -> list["HiddenStates"]:
        parts = zip(self.hidden.split(request.counts), self.aux.split([len(row) for row in request.rows]), strict=True)
        return [HiddenStates(hidden, aux) for hidden, aux in parts]


def concat_states(parts: Sequence[HiddenStates]) -> HiddenStates:
    return HiddenStates(torch.cat([part.hidden for part in parts]), torch.cat([part.aux for part in parts]))


def from_bytes(data: bytes) -> HiddenStates:
    """Parse a response. Raises BadInput for anything but a safetensors file with both matrices."""
    try:
        tensors = load(data)
        return HiddenStates(tensors["hidden"], tensors["aux"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise BadInput(f"The answer is not a safetensors file with hidden and aux ({error}).") from None


def check_shapes(states: HiddenStates, request: StatesRequest, hidden_size: int) -> None:
    """Raise BadInput unless the shapes of `states` match the request for hidden size `hidden_size`."""
    expected = ((sum(request.counts), hidden_size), (request.tokens, len(request.layers) * hidden_size))
    shapes = tuple(map(tuple, (states.hidden.shape, states.aux.shape)))
    if shapes != expected:
        raise BadInput(f"The hidden states have the shapes {shapes}, expected are {expected}.")


def compute_states(base: Any, request: StatesRequest) -> HiddenStates:
    """Compute hidden states with a base model in this process, by one forward over the rows as one batch."""
    ids = pad_sequence([row.long() for row in request.rows], batch_first=True).to(base.device)
    lengths = torch.tensor([*map(len, request.rows)], device=base.device)
    with torch.no_grad():
        hidden, aux = base.forward_hidden(ids, layers=request.layers, lengths=lengths)
    token_mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    position_mask = token_mask
    if request.positions is not None:
        position_mask = torch.zeros_like(token_mask)
        for row, positions in zip(position_mask, request.positions, strict=True):
            row[positions.long().to(ids.device)] = True
    joined_aux = torch.cat([each[token_mask] for each in aux], -1) if aux else hidden.new_zeros(request.tokens, 0)
    return HiddenStates(hidden[position_mask], joined_aux)
