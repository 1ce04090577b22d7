"""Weights in pickles of torch, rewritten as safetensors. For limited children only.

`weights_only=True` builds tensors and containers of them; a pickle that names anything else is refused before that is
imported or called. Source: torch.load's documentation.
"""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from speculoos.errors import BadInput

WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Keys under which some trainers keep the weights of a file."""
HEADS = ("lm_head.weight", "embed_out.weight")
"""Output matrices that share the memory of the embeddings in models with tied weights."""


def convert(file: Path, target: Path, tied: bool = False) -> None:
    """Write the tensors in `file` to `target`, as safetensors. With `tied`, an output matrix that shares its memory
    with the embeddings is left out, as `save_pretrained` does. Raises BadInput for a pickle that holds code, a damaged
    one, or one without tensors."""
    tensors = {name: value for name, value in _weights(_load(file), file).items() if isinstance(value, Tensor)}
    if not tensors:
        raise BadInput(f"{file.name}: holds no tensors under names; fetch it again.")
    if tied:
        tensors = _without_tied_head(tensors)
    try:
        save_file(_separate(tensors), target, metadata={"format": "pt"})
    except (RuntimeError, ValueError, TypeError, KeyError) as error:  # sparse and quantised tensors among them
        raise BadInput(f"{file.name}: its tensors cannot be written as safetensors ({_first_line(error)}).") from None


def _load(file: Path) -> Any:
    try:
        mapped = zipfile.is_zipfile(file)  # files of torch before 1.6 cannot be mapped
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        if not _is_pickle(file):
            raise BadInput(f"{file.name}: is no file of torch.save; fetch it again.") from None
        raise BadInput(
            f"{file.name}: this pickle holds code ({_culprit(error)}), which is never run; "
            "ask its publisher for safetensors."
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError, IndexError, TypeError) as error:
        raise BadInput(f"{file.name}: damaged, or no file of torch.save ({_first_line(error)}).") from None


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as safetensors wants them. Only those that share some are copied: a file may be as
    large as the memory."""
    seen: set[int] = set()
    made = {}
    for name, value in tensors.items():
        value = value.detach()
        place = value.untyped_storage().data_ptr()
        whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
        made[name] = value if whole and place not in seen else value.contiguous().clone()
        seen.add(place)
    return made


def _without_tied_head(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    places = [value.data_ptr() for value in tensors.values()]
    return {
        name: value
        for name, value in tensors.items()
        if not (name.endswith(HEADS) and places.count(value.data_ptr()) > 1)
    }


def _culprit(error: Exception) -> str:
    """The global that torch refused, from its sentence; else that it is an instruction it does not know."""
    words = str(error).split()
    named = [word for before, word in zip(words, words[1:], strict=False) if before in ("GLOBAL", "global")]
    return next((word.strip(".,`'") for word in named), "an unknown instruction")


def _is_pickle(file: Path) -> bool:
    """By its first bytes: a zip of torch.save, or a bare pickle; a pointer of git-lfs or a web page is neither."""
    with open(file, "rb") as handle:
        return handle.read(1) in (b"P", b"\x80")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".")


def _weights(state: Any, file: Path) -> Mapping[str, Any]:
    """The mapping of names to tensors, out of what trainers wrap it in."""
    for key in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise BadInput(f"{file.name}: expected names with tensors, found {type(state).__name__}.")
    return state
