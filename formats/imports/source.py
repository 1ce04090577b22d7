"""A third party's draft in a folder: its config, its tensors by name, its licence. Reads safetensors only; pickles are
converted before."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from formats.imports.names import SECTIONS, Fields
from models import identity
from models.card import read_licence
from models.hub import PICKLES
from models.identity import FLOATS, TensorEntry
from speculoos.errors import BadInput, Unsupported

BUFFERS = re.compile(r".*rotary_emb\.inv_freq|verifier_(lm_head|norm)\.weight|(.*\.)?position_ids")
"""Tensors in older files that follow from the config or from the base model; they are ignored."""


def pickled_files(folder: Path) -> list[Path]:
    """The pickles of a folder; [] if it has safetensors files."""
    if safetensors_files(folder):
        return []
    return sorted(path for path in folder.iterdir() if PICKLES.fullmatch(path.name) and path.is_file())


def safetensors_files(folder: Path) -> list[Path]:
    """Weight files of the draft: those of its index, else model*.safetensors, else all."""
    if (folder / identity.INDEX).exists():
        return identity.weight_files(folder)
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    return [path for path in files if path.name.startswith("model")] or files


class DraftSource:
    """The draft in a folder. Tensors are read by `take`, which records their names."""

    def __init__(self, folder: Path, converted: list[Path], shown: str, layout_chosen: bool):
        """`converted`: converted pickles, used instead of the weights in the folder. `shown`: the draft's name in
        messages. `layout_chosen`: the user chose the layout, so nothing is guessed."""
        self.folder, self.name, self.layout_chosen = folder, shown, layout_chosen
        self.config = identity.read_json(folder / "config.json")
        self.converted = converted
        self.entries = self._entries(converted or safetensors_files(folder))
        self._taken: set[str] = set()

    def _entries(self, files: list[Path]) -> dict[str, TensorEntry]:
        entries: dict[str, TensorEntry] = {}
        for entry in (entry for file in files for entry in identity.tensors_of(file)):
            if entry.name in entries:
                raise BadInput(f"{self.name}: {entry.name} is in two of its files; keep one of them.")
            entries[entry.name] = entry
        return {name: entry for name, entry in entries.items() if not BUFFERS.fullmatch(name)}

    @property
    def config_name(self) -> str:
        return f"{self.name}/config.json"

    @property
    def fields(self) -> Fields:
        """The config's fields, including keys in nested sections."""
        return Fields(self.config_name, self.config, *(self.config.get(name) for name in SECTIONS))

    def rename(self, new_name: Callable[[str], str]) -> None:
        """Rename all tensors. Raises BadInput if two would have the same name."""
        entries: dict[str, TensorEntry] = {}
        for name, entry in self.entries.items():
            if (new := new_name(name)) in entries:
                raise BadInput(f"{self.name}: {name} and {entries[new].name} are the same tensor twice; keep one.")
            entries[new] = entry
        self.entries = entries

    def name_in_file(self, name: str) -> str:
        """A tensor's name in the file; for a missing tensor, derived from another tensor of the same layer."""
        if name in self.entries:
            return self.entries[name].name
        start = re.match(r"(?:layers\.\d+\.)?", name)[0]
        for other, entry in self.entries.items():
            rest = other.removeprefix(start)
            if other.startswith(start) and entry.name.endswith(rest):
                return entry.name.removesuffix(rest) + name.removeprefix(start)
        return name

    def has(self, name: str) -> bool:
        return name in self.entries

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor. Raises BadInput if it is missing."""
        if name not in self.entries:
            raise BadInput(f"{self.name}: the tensor {self.name_in_file(name)} is missing; download the draft again.")
        return self.entries[name].shape

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Read a tensor and record its name. Raises BadInput if it is missing or has another `shape`."""
        actual = self.shape(name)
        if shape is not None and actual != shape:
            transposed = ": it is transposed" if actual == shape[::-1] else ""
            raise BadInput(
                f"{self.name}: {self.name_in_file(name)}: expected the shape {list(shape)}, found "
                f"{list(actual)}{transposed}."
            )
        entry = self.entries[name]
        try:
            with safe_open(entry.file, "pt") as stored:
                value = stored.get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{self.name}: {entry.name} cannot be read ({error}); download the draft again.") from None
        self._taken.add(name)
        return value

    def drop(self, names: Iterable[str]) -> None:
        for name in names:
            del self.entries[name]

    def check_all_taken(self) -> None:
        """Raise Unsupported with the name of a tensor that was not taken."""
        if unused := [entry.name for name, entry in self.entries.items() if name not in self._taken]:
            more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
            raise Unsupported(f"{self.name}: contains {unused[0]}{more}, which is not part of a supported draft.")

    @property
    def dtype(self) -> str:
        """The floating-point type of most of its numbers; "" if there are none."""
        counts: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.dtype in FLOATS:
                counts[entry.dtype] = counts.get(entry.dtype, 0) + entry.count
        return FLOATS[max(counts, key=counts.__getitem__)] if counts else ""

    @property
    def licence(self) -> str:
        """The licence in its README or config."""
        stated = self.config.get("license")
        return read_licence(self.folder) or (stated[:80] if isinstance(stated, str) else "")


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal in the lower of their precisions."""
    if one.shape != other.shape:
        return False
    if one.is_floating_point() and one.dtype != other.dtype:
        return torch.equal(one, other.to(one.dtype)) or torch.equal(one.to(other.dtype), other)
    return torch.equal(one, other)
