"""Hidden states kept in a folder from run to run, a safetensors file for each row of tokens, by which base they are of.

A file is written whole or not at all and never changes, so runs may share a folder, also over a network. A row is
found by exactly what was asked of it; or, where only the head's input is asked for, among what its author kept of it.
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
from training.hidden_states.wire import HiddenStates, StatesRequest, check_given

WRITTEN = "written"
"""In place of the places asked for: those that were computed while the row was written."""


class KeptStates:
    """The rows in `folder` of the base with these weights, computed in `dtype`, whose hidden states have `width`."""

    def __init__(self, folder: Path, base_sha256: str, dtype: torch.dtype, width: int):
        self.folder, self._width = folder, width
        self._base = f"{base_sha256} {str(dtype).removeprefix('torch.')}"
        self._writing = threading.Lock()

    def read(self, single: StatesRequest) -> HiddenStates | None:
        """What was asked of one row; None where there is no whole file of it: it is made again."""
        exact = self._load(self._path(single.to_json()))
        if exact is None and not single.layers and single.places:
            exact = self._among_written(single)
        try:
            given = exact and HiddenStates(exact["hidden"], exact["aux"])
            if given:
                check_given(given, single, self._width)
        except (KeyError, SpeculoosError):
            return None
        return given

    def write(self, single: StatesRequest, given: HiddenStates) -> None:
        """Keep what was asked of one row. Raises Unavailable where the folder does not take it."""
        self._save(self._path(single.to_json()), {"hidden": given.hidden, "aux": given.aux})

    def write_answers(self, row: Sequence[int], places: Sequence[int], hidden: Tensor) -> None:
        """Keep the head's input `hidden` [m, H] at ascending `places` [m] of a row of token ids."""
        tensors = {"hidden": hidden, "places": torch.tensor(places, dtype=torch.int32)}
        self._save(self._path(_written(row)), tensors)

    def _among_written(self, single: StatesRequest) -> dict[str, Tensor] | None:
        """Of a row whose author kept more places than are asked for."""
        (row,), (wanted,) = single.rows, single.places or ()
        tensors = self._load(self._path(_written(row.tolist()))) or {}
        if not {"hidden", "places"} <= {*tensors} or not len(tensors["places"]):
            return None
        at = torch.searchsorted(tensors["places"], wanted.int()).clamp(max=len(tensors["places"]) - 1)
        if not torch.equal(tensors["places"][at], wanted.int()) or len(tensors["hidden"]) != len(tensors["places"]):
            return None
        return {"hidden": tensors["hidden"][at], "aux": tensors["hidden"].new_zeros(len(row), 0)}

    def _path(self, said: dict) -> Path:
        text = json.dumps({"of": self._base, **said}, sort_keys=True)
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
                f"{path.parent}: hidden states cannot be kept ({error}).", "Make room, or go on without a store."
            ) from None


def _written(row: Sequence[int]) -> dict:
    return {"base_sha256": "", "rows": [list(row)], "layers": [], "places": WRITTEN}
