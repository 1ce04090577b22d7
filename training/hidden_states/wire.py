"""What a training asks of a base that runs elsewhere, and what comes back: the protocol's two messages.

    GET  /v1/base           → JSON: which base, its sizes, its limits (`facts` in training/hidden_states/server.py)
    POST /v1/hidden_states  ← JSON: {"base_sha256", "rows", "layers", "places"}   → safetensors: hidden, aux

Numbers travel as they lie in memory (bfloat16 stays bfloat16), padding does not travel, nothing is pickled.
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

PROTOCOL = 1
LARGEST_NUMBER = 4
"""Bytes."""
TYPE = "application/vnd.safetensors"


@dataclass(frozen=True, eq=False)
class StatesRequest:
    """Rows of token ids, each [n], and what is wanted of them: the outputs of 0-based `layers` at every token, and the
    head's input at `places`, ascending positions [m] of each row (None: at every token)."""

    rows: tuple[Tensor, ...]
    layers: tuple[int, ...] = ()
    places: tuple[Tensor, ...] | None = None

    @property
    def tokens(self) -> int:
        return sum(map(len, self.rows))

    @property
    def counts(self) -> list[int]:
        """Places of each row."""
        return [*map(len, self.rows if self.places is None else self.places)]

    def numbers(self, width: int) -> int:
        """How many a base of this width gives."""
        return (sum(self.counts) + self.tokens * len(self.layers)) * width

    def to_json(self, base_sha256: str = "") -> dict[str, Any]:
        places = None if self.places is None else [of.tolist() for of in self.places]
        rows = [row.tolist() for row in self.rows]
        return {"base_sha256": base_sha256, "rows": rows, "layers": list(self.layers), "places": places}


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """`hidden` [places of all rows, H], what the head reads; `aux` [tokens of all rows, layers · H], side by side."""

    hidden: Tensor
    aux: Tensor

    def to_bytes(self) -> bytes:
        """As a safetensors file."""
        return save({"hidden": self.hidden.cpu().contiguous(), "aux": self.aux.cpu().contiguous()})

    def by_row(self, asked: StatesRequest) -> list["HiddenStates"]:
        """The same, row by row."""
        parts = zip(self.hidden.split(asked.counts), self.aux.split([len(row) for row in asked.rows]), strict=True)
        return [HiddenStates(hidden, aux) for hidden, aux in parts]


def joined(parts: Sequence[HiddenStates]) -> HiddenStates:
    """Rows, one after the other."""
    return HiddenStates(torch.cat([part.hidden for part in parts]), torch.cat([part.aux for part in parts]))


def from_bytes(data: bytes) -> HiddenStates:
    """Raises BadInput for anything but a safetensors file with these two matrices."""
    try:
        tensors = load(data)
        return HiddenStates(tensors["hidden"], tensors["aux"])
    except (SafetensorError, KeyError, ValueError) as error:
        raise BadInput(f"The answer is no safetensors file with hidden and aux ({error}).") from None


def check_given(given: HiddenStates, asked: StatesRequest, width: int) -> None:
    """Raise BadInput unless `given` is what was `asked` of a base of this width."""
    expected = ((sum(asked.counts), width), (asked.tokens, len(asked.layers) * width))
    found = tuple(map(tuple, (given.hidden.shape, given.aux.shape)))
    if found != expected:
        raise BadInput(f"The hidden states have the shapes {found}, wanted are {expected}.")


def padded(rows: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """input_ids int64 [B, L], padded on the right with 0, and lengths [B]."""
    ids = pad_sequence([row.long() for row in rows], batch_first=True)
    return ids.to(device), torch.tensor([len(row) for row in rows], device=device)


def computed(base: Any, asked: StatesRequest) -> HiddenStates:
    """What a base that is here gives, by one forward over the rows as one batch."""
    ids, lengths = padded(asked.rows, base.device)
    with torch.no_grad():
        hidden, aux = base.forward_hidden(ids, layers=asked.layers, lengths=lengths)
    real = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
    joined_aux = torch.cat([each[real] for each in aux], -1) if aux else hidden.new_zeros(asked.tokens, 0)
    return HiddenStates(hidden[real] if asked.places is None else hidden[placed(asked.places, ids)], joined_aux)


def placed(places: Sequence[Tensor], ids: Tensor) -> Tensor:
    """Places of each row as bool [B, L], the shape of `ids`."""
    where = torch.zeros_like(ids, dtype=torch.bool)
    for row, of in enumerate(places):
        where[row, of.long().to(ids.device)] = True
    return where
