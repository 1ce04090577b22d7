"""A draft as somebody else left it in a folder: its config, its tensors by name, its licence. Safetensors only; pickles
were rewritten before."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from formats.imports.fields import Fields
from formats.imports.names import SECTIONS
from models import identity
from models.card import licence_in
from models.hub import PICKLES
from models.identity import FLOATS, TensorEntry
from speculoos.errors import BadInput, Unsupported

BUFFERS = re.compile(r".*rotary_emb\.inv_freq|verifier_(lm_head|norm)\.weight|(.*\.)?position_ids")
"""Tensors that old files keep beside the weights and that follow from the config or from the base."""


def pickled_files(folder: Path) -> list[Path]:
    """The pickles of a folder that has no safetensors of the same weights."""
    if safetensors_files(folder):
        return []
    return sorted(path for path in folder.iterdir() if PICKLES.fullmatch(path.name) and path.is_file())


def safetensors_files(folder: Path) -> list[Path]:
    """Weights of the draft: those of its index, else model*.safetensors, else all."""
    if (folder / identity.INDEX).exists():
        return identity.weight_files(folder)
    files = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    return [path for path in files if path.name.startswith("model")] or files


class DraftSource:
    """What is in the folder. Tensors are read when they are taken, and ticked off."""

    def __init__(self, folder: Path, files: list[Path], shown: str, layout_given: bool):
        """`files`: weights instead of those in the folder (pickles rewritten). `shown`: how messages name it.
        `layout_given`: somebody said what its layout is, so that nothing is guessed."""
        self.folder, self.name, self.layout_given = folder, shown, layout_given
        self.config = identity.read_json(folder / "config.json")
        self.rewritten = files
        self.entries = self._entries(self.rewritten or safetensors_files(folder))
        self._taken: set[str] = set()

    def _entries(self, files: list[Path]) -> dict[str, TensorEntry]:
        entries: dict[str, TensorEntry] = {}
        for entry in (entry for file in files for entry in identity.tensors_of(file)):
            if entry.name in entries:
                raise BadInput(f"{self.name}: {entry.name} is in two of its files; keep one of them.")
            entries[entry.name] = entry
        return {name: entry for name, entry in entries.items() if not BUFFERS.fullmatch(name)}

    @property
    def where(self) -> str:
        """How messages begin that are about its config."""
        return f"{self.name}/config.json"

    @property
    def fields(self) -> Fields:
        """The config; keys that some projects put into sections count where the top has none."""
        return Fields(self.where, self.config, *(self.config.get(name) for name in SECTIONS))

    def rename(self, to: Callable[[str], str]) -> None:
        """Call every tensor by another name. Raises BadInput where two would have the same."""
        entries: dict[str, TensorEntry] = {}
        for name, entry in self.entries.items():
            if (own := to(name)) in entries:
                raise BadInput(f"{self.name}: {name} and {entries[own].name} are the same tensor twice; keep one.")
            entries[own] = entry
        self.entries = entries

    def their(self, name: str) -> str:
        """What the file itself calls a tensor, also one that it lacks, by what it calls another of the same layer."""
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
        """Its shape. Raises BadInput where there is no such tensor."""
        if name not in self.entries:
            raise BadInput(f"{self.name}: the tensor {self.their(name)} is missing; fetch the draft again.")
        return self.entries[name].shape

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Read a tensor, ticked off. Raises BadInput where it is missing or has another `shape`."""
        actual = self.shape(name)
        if shape is not None and actual != shape:
            raise BadInput(
                f"{self.name}: {self.their(name)}: expected the shape {_text(shape)}, {_mismatch(actual, shape)}."
            )
        entry = self.entries[name]
        try:
            with safe_open(entry.file, "pt") as stored:
                value = stored.get_tensor(entry.name)
        except (SafetensorError, OSError) as error:
            raise BadInput(f"{self.name}: {entry.name} cannot be read ({error}); fetch the draft again.") from None
        self._taken.add(name)
        return value

    def leave(self, names: Iterable[str]) -> None:
        """Treat tensors as if they were not there."""
        for name in names:
            del self.entries[name]

    def check_nothing_left(self) -> None:
        """Raise Unsupported, naming a tensor that no part of the draft is made of."""
        if left := [entry.name for name, entry in self.entries.items() if name not in self._taken]:
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise Unsupported(
                f"{self.name}: holds {left[0]}{more}, which is no part of such a draft as it is known here."
            )

    @property
    def dtype(self) -> str:
        """What most of its numbers are stored as."""
        counts: dict[str, int] = {}
        for entry in self.entries.values():
            if entry.dtype in FLOATS:
                counts[entry.dtype] = counts.get(entry.dtype, 0) + entry.count
        return FLOATS[max(counts, key=counts.__getitem__)] if counts else ""

    @property
    def licence(self) -> str:
        """As its README or config states it."""
        stated = self.config.get("license")
        return licence_in(self.folder) or (stated[:80] if isinstance(stated, str) else "")


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors say the same in the coarser of their precisions."""
    if one.shape != other.shape:
        return False
    if one.is_floating_point() and one.dtype != other.dtype:
        return torch.equal(one, other.to(one.dtype)) or torch.equal(one.to(other.dtype), other)
    return torch.equal(one, other)


def _text(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape)) or "a single number"


def _mismatch(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if shape == expected[::-1]:
        return f"found {_text(shape)}: it is transposed"
    return f"found {_text(shape)}"
