"""Convert pickled torch weights to safetensors. Use only in a child process with limits.

`weights_only=True` loads tensors and containers of them; a pickle that references anything else is rejected before that
is imported or called. Source: torch.load's documentation."""

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from speculoos.errors import BadInput, first_line

WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Keys under which some trainers store the weights."""
HEADS = ("lm_head.weight", "embed_out.weight")
"""Output matrices that share memory with the embeddings in models with tied weights."""


def convert(file: Path, target: Path, tied: bool = False) -> None:
    """Write the tensors in `file` to `target`, as safetensors. With `tied`, an output matrix that shares memory with
    the embeddings is left out, as `save_pretrained` does. Raises BadInput for a pickle that holds code, is damaged or
    has no tensors."""
    tensors = {name: value for name, value in _weights(_load(file), file).items() if isinstance(value, Tensor)}
    if not tensors:
        raise BadInput(f"{file.name}: contains no named tensors; fetch it again.")
    if tied:
        tensors = _without_tied_head(tensors)
    try:
        save_file(_separate(tensors), target, metadata={"format": "pt"})
    except (RuntimeError, ValueError, TypeError, KeyError) as error:  # for example sparse or quantized tensors
        raise BadInput(f"{file.name}: its tensors cannot be written as safetensors ({first_line(error)}).") from None


def _load(file: Path) -> Any:
    try:
        mapped = zipfile.is_zipfile(file)  # files written by torch before 1.6 cannot be memory-mapped
        return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        if not _is_pickle(file):
            raise BadInput(f"{file.name}: is not a file written by torch.save; fetch it again.") from None
        raise BadInput(
            f"{file.name}: this pickle holds code ({_refused_global(error)}), which is never run; "
            "ask its publisher for safetensors."
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError, IndexError, TypeError) as error:
        raise BadInput(f"{file.name}: damaged, or not a file written by torch.save ({first_line(error)}).") from None


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share no memory, as safetensors requires; only sharing ones are copied, to save memory."""
    seen: set[int] = set()
    result = {}
    for name, value in tensors.items():
        value = value.detach()
        address = value.untyped_storage().data_ptr()
        whole = value.is_contiguous() and value.untyped_storage().nbytes() == value.nbytes
        result[name] = value if whole and address not in seen else value.contiguous().clone()
        seen.add(address)
    return result


def _without_tied_head(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    addresses = [value.data_ptr() for value in tensors.values()]
    return {
        name: value
        for name, value in tensors.items()
        if not (name.endswith(HEADS) and addresses.count(value.data_ptr()) > 1)
    }


def _refused_global(error: Exception) -> str:
    words = str(error).split()
    named = [word for before, word in zip(words, words[1:], strict=False) if before in ("GLOBAL", "global")]
    return next((word.strip(".,`'") for word in named), "an unknown instruction")


def _is_pickle(file: Path) -> bool:
    """By its first byte: a zip of torch.save or a pickle; a git-lfs pointer or a web page is neither."""
    with open(file, "rb") as handle:
        return handle.read(1) in (b"P", b"\x80")


def _weights(state: Any, file: Path) -> Mapping[str, Any]:
    for key in WRAPPERS:
        if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
            state = state[key]
    if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
        raise BadInput(f"{file.name}: expected names with tensors, found {type(state).__name__}.")
    return state
