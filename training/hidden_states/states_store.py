"""On-disk store of hidden states, shared between runs: one safetensors file per row of tokens and base model.

Files are written atomically and never change, so runs may share a folder, also over a network. A row is looked up by
its exact request; a request for the head's input alone may also be served from what the generation of the row stored.
"""

import hashlib
import json
import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from speculoos.errors import SpeculoosError, Unavailable
from speculoos.files import new_path
from training.hidden_states.wire import HiddenStates, StatesRequest, check_shapes

WRITTEN = "written"
"""Replaces the requested positions in the key of a row whose hidden states were stored while it was generated."""


class StatesStore:
    """Rows in `folder` of one base model, computed in `dtype`; `width` is its hidden size."""

    def __init__(self, folder: Path, base_sha256: str, dtype: torch.dtype, width: int):
        self.folder, self._width = folder, width
        self._base = f"{base_sha256} {str(dtype).removeprefix('torch.')}"
        self._writing = threading.Lock()

    def read(self, single: StatesRequest) -> HiddenStates | None:
        """Hidden states for a request of one row; None when the store has no valid file for it."""
        tensors = self._load(self._path(single.to_json()))
        if tensors is None and not single.layers and single.positions:
            tensors = self._from_generation(single)
        try:
            states = tensors and HiddenStates(tensors["hidden"], tensors["aux"])
            if states:
                check_shapes(states, single, self._width)
        except (KeyError, SpeculoosError):
            return None
        return states

    def write(self, single: StatesRequest, states: HiddenStates) -> None:
        """Store the hidden states for a request of one row. Raises Unavailable when the folder is not writable."""
        self._save(self._path(single.to_json()), {"hidden": states.hidden, "aux": states.aux})

    def write_answers(self, row: Sequence[int], positions: Sequence[int], hidden: Tensor) -> None:
        """Store the head's input `hidden` [m, H] at ascending `positions` [m] of a row of token ids."""
        tensors = {"hidden": hidden, "places": torch.tensor(positions, dtype=torch.int32)}
        self._save(self._path(_written(row)), tensors)

    def _from_generation(self, single: StatesRequest) -> dict[str, Tensor] | None:
        """Selected positions of a row stored by `write_answers`; None unless it has all of them."""
        (row,), (positions,) = single.rows, single.positions or ()
        tensors = self._load(self._path(_written(row.tolist()))) or {}
        if not {"hidden", "places"} <= {*tensors} or not len(tensors["places"]):
            return None
        at = torch.searchsorted(tensors["places"], positions.int()).clamp(max=len(tensors["places"]) - 1)
        if not torch.equal(tensors["places"][at], positions.int()) or len(tensors["hidden"]) != len(tensors["places"]):
            return None
        return {"hidden": tensors["hidden"][at], "aux": tensors["hidden"].new_zeros(len(row), 0)}

    def _path(self, request: dict) -> Path:
        text = json.dumps({"of": self._base, **request}, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        return self.folder / key[:2] / f"{key}.safetensors"

    def _load(self, path: Path) -> dict[str, Tensor] | None:
        try:
            return load_file(path)
        except (OSError, SafetensorError):
            return None

    def _save(self, path: Path, tensors: dict[str, Tensor]) -> None:
        tensors = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
        try:
            with self._writing:
                path.parent.mkdir(parents=True, exist_ok=True)
                with new_path(path) as temporary:
                    save_file(tensors, temporary)
        except (OSError, SafetensorError) as error:
            raise Unavailable(
                f"{path.parent}: hidden states cannot be stored ({error}).", "Free some disk space, or use no store."
            ) from None


def _written(row: Sequence[int]) -> dict:
    return {"base_sha256": "", "rows": [list(row)], "layers": [], "places": WRITTEN}
