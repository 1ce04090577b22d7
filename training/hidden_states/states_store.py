"""On-disk store of hidden states, shared between runs: one safetensors file per row of tokens and base model.

Files are written atomically and never change, so runs may share a folder, also over a network. A row is looked up by
its exact request; a request for the head's input alone may also be served from what the generation of the row stored.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from speculoos.errors import SpeculoosError, Unavailable
from speculoos.files import new_path
from training.hidden_states.wire import HiddenStates, StatesRequest, check_shapes, concat_states

FROM_GENERATION = "written"
"""Replaces the requested positions in the key of a row whose hidden states were stored while it was generated."""


class StatesStore:
    """Rows in `folder` of one base model, computed in `dtype`; `hidden_size` is its hidden size."""

    def __init__(self, folder: Path, base_sha256: str, dtype: torch.dtype, hidden_size: int):
        self.folder, self._hidden_size = folder, hidden_size
        self._base = f"{base_sha256} {str(dtype).removeprefix('torch.')}"

    def read(self, row_request: StatesRequest) -> HiddenStates | None:
        """Hidden states for a request of one row; None when the store has no valid file for it."""
        tensors = _load(self._path(row_request.to_json()))
        if not tensors and not row_request.layers and row_request.positions:
            tensors = self._from_generation(row_request)
        try:
            states = HiddenStates(tensors["hidden"], tensors["aux"])
            check_shapes(states, row_request, self._hidden_size)
        except (KeyError, SpeculoosError):
            return None
        return states

    def read_through(self, compute: Callable[[StatesRequest], HiddenStates], request: StatesRequest) -> HiddenStates:
        """Hidden states from the store; those of missing rows are computed and stored."""
        row_requests = [_subset(request, [number]) for number in range(len(request.rows))]
        results = [self.read(row_request) for row_request in row_requests]
        if missing := [number for number, states in enumerate(results) if states is None]:
            subset = _subset(request, missing)
            for number, states in zip(missing, compute(subset).by_row(subset), strict=True):
                self.write(row_requests[number], states)
                results[number] = states
        return concat_states([states for states in results if states is not None])

    def write(self, row_request: StatesRequest, states: HiddenStates) -> None:
        """Store the hidden states for a request of one row. Raises Unavailable when the folder is not writable."""
        self._save(self._path(row_request.to_json()), {"hidden": states.hidden, "aux": states.aux})

    def write_answers(self, row: Sequence[int], positions: Sequence[int], hidden: Tensor) -> None:
        """Store the head's input `hidden` [m, H] at ascending `positions` [m] of a row of token ids."""
        tensors = {"hidden": hidden, "positions": torch.tensor(positions, dtype=torch.int32)}
        self._save(self._path(_generated_row_key(row)), tensors)

    def _from_generation(self, row_request: StatesRequest) -> dict[str, Tensor]:
        """Selected positions of a row stored by `write_answers`; {} unless it has all of them."""
        (row,), (positions,) = row_request.rows, row_request.positions or ()
        tensors = _load(self._path(_generated_row_key(row.tolist())))
        stored, hidden = tensors.get("positions", positions[:0]), tensors.get("hidden", positions[:0])
        if not len(stored) or len(hidden) != len(stored):
            return {}
        indices = torch.searchsorted(stored, positions.int()).clamp(max=len(stored) - 1)
        if not torch.equal(stored[indices], positions.int()):
            return {}
        return {"hidden": hidden[indices], "aux": hidden.new_zeros(len(row), 0)}

    def _path(self, request: dict) -> Path:
        text = json.dumps({"of": self._base, **request}, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.safetensors"

    def _save(self, path: Path, tensors: dict[str, Tensor]) -> None:
        tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_path(path) as temporary:
                save_file(tensors, temporary)
        except (OSError, SafetensorError) as error:
            raise Unavailable(
                f"{path.parent}: hidden states cannot be stored ({error}).", "Free some disk space, or use no store."
            ) from None


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        return {}


def _generated_row_key(row: Sequence[int]) -> dict:
    return {"base_sha256": "", "rows": [list(row)], "layers": [], "positions": FROM_GENERATION}


def _subset(request: StatesRequest, row_indices: Sequence[int]) -> StatesRequest:
    rows = tuple(request.rows[number] for number in row_indices)
    positions = None if request.positions is None else tuple(request.positions[number] for number in row_indices)
    return StatesRequest(rows, request.layers, positions)
