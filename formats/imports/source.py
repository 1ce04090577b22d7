"""A third party's draft in a folder, the base model it is for, and the workbench's network filled with its tensors.

Reads safetensors only; pickles are converted before. Of the base model only sizes (from a model on the meta device) and
single tensors are read."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from formats.imports.names import SECTIONS, Fields, detect
from models import identity, untrusted
from models.base import LoadedBase
from models.card import read_licence
from models.checkpoints import draft_class, stored_tensors
from models.hub import PICKLES
from models.identity import FLOATS, TensorEntry
from speculoos.errors import BadInput, Unsupported

META = torch.device("meta")
EMBEDDINGS = "embed_tokens.weight"
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
    """The draft in a folder for a base model. Tensors are read by `take`, which records their names. `notices` are
    sentences for the user about differences that were accepted."""

    def __init__(self, folder: Path, converted: list[Path], shown: str, layout: str, base: "BaseOutline"):
        """`converted`: converted pickles, used instead of the weights in the folder. `shown`: the draft's name in
        messages. `layout`: one of `names.TITLES`, "" to detect it; a chosen one is followed without guessing."""
        self.folder, self.name, self.base = folder, shown, base
        self.notices: list[str] = []
        self.config = identity.read_json(folder / "config.json")
        self.converted = converted
        self.entries: dict[str, TensorEntry] = {}
        for entry in chain.from_iterable(map(identity.tensors_of, converted or safetensors_files(folder))):
            if entry.name in self.entries:
                raise BadInput(f"{self.name}: {entry.name} is in two of its files; keep one of them.")
            if not BUFFERS.fullmatch(entry.name):
                self.entries[entry.name] = entry
        self.taken: set[str] = set()
        self.layout_chosen = bool(layout)
        self.layout = layout or detect(self.config, self.entries, shown)

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
        self.taken.add(name)
        return value

    @property
    def dtype(self) -> str:
        """The floating-point type of most of its numbers; "" if there are none."""
        counts: Counter[str] = Counter()
        for entry in self.entries.values():
            if entry.dtype in FLOATS:
                counts[FLOATS[entry.dtype]] += entry.count
        return counts.most_common(1)[0][0] if counts else ""

    @property
    def licence(self) -> str:
        """The license in its README or config."""
        stated = self.config.get("license")
        return read_licence(self.folder) or (stated[:80] if isinstance(stated, str) else "")


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal in the lower of their precisions."""
    if one.shape != other.shape:
        return False
    if one.is_floating_point() and one.dtype != other.dtype:
        return torch.equal(one, other.to(one.dtype)) or torch.equal(one.to(other.dtype), other)
    return torch.equal(one, other)


class BaseOutline:
    """Sizes and single tensors of the base model in `folder`; `name` is used in messages."""

    def __init__(self, folder: str | Path, name: str):
        self.folder, self.name = Path(folder), name
        self.base = LoadedBase(_meta_model(self.folder), None, self.folder, torch.float32, META, frozenset())
        self.hidden_size, self.vocab_size = self.base.hidden_size, self.base.vocab_size

    @cached_property
    def entries(self) -> dict[str, TensorEntry]:
        """Headers of its tensors by name."""
        return {entry.name: entry for entry in identity.tensors(self.folder)}

    @cached_property
    def embeddings(self) -> Tensor | None:
        """[V, H]; None if no tensor in its files has their name."""
        return self._weight(self.base.embed_tokens)

    @cached_property
    def head(self) -> Tensor | None:
        """[V, H]: its lm_head, or the embeddings if they are tied."""
        head = self._weight(self.base.lm_head)
        tied = self.base.config.get_text_config().tie_word_embeddings
        return self.embeddings if head is None and tied else head

    def _weight(self, module: Any) -> Tensor | None:
        parameters = self.base.model.named_parameters(remove_duplicate=False)
        names = [name for name, value in parameters if value is module.weight]
        entry = next((self.entries[name] for name in names if name in self.entries), None)
        if entry is None:
            return None
        with safe_open(entry.file, "pt") as stored:
            return stored.get_tensor(entry.name)


def _meta_model(folder: Path) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    with untrusted.sanitised_folder(folder, weights=False) as clean:
        config = AutoConfig.from_pretrained(clean, trust_remote_code=False, local_files_only=True)
    try:
        with META:
            return AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise Unsupported(f"{folder}: transformers cannot build this base model ({type(error).__name__}).") from None


@dataclass
class ImportedDraft:
    """The method's network, on the meta device if its weights are in `tensors`. `info` is the training metadata of a
    Speculoos checkpoint."""

    network: Any
    tensors: dict[str, Tensor]
    info: dict[str, Any] = field(default_factory=dict)
    drafting: dict[str, Any] = field(default_factory=dict)


def fill(method: str, config: dict[str, Any], source: DraftSource, tensors: dict[str, Tensor]) -> ImportedDraft:
    """The network of `config` with all its tensors, from `tensors` or from the source under the same name. Raises
    BadInput or Unsupported if a tensor is missing, has another shape, or is not used."""
    with META:  # names and shapes, no numbers
        network = draft_class(method).from_json(config, source.base.base)
    filled = {}
    for name, parameter in stored_tensors(network).items():
        value = tensors[name] if name in tensors else source.take(name, tuple(parameter.shape))
        if tuple(value.shape) != tuple(parameter.shape):
            raise BadInput(f"{source.name}: {name} has the shape {list(value.shape)}, not {list(parameter.shape)}.")
        filled[name] = value
    if unused := [entry.name for name, entry in source.entries.items() if name not in source.taken]:
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        raise Unsupported(f"{source.name}: contains {unused[0]}{more}, which is not part of a supported draft.")
    return ImportedDraft(network, filled)


def check_size(source: DraftSource, key: str, stated: int, actual: int) -> None:
    """Raise Unsupported if the size in the config is not the base model's."""
    if stated != actual:
        raise Unsupported(
            f"{source.config_name}: {key} is {stated}, the base model {source.base.name} has {actual}; "
            "choose the base model the draft was trained for."
        )


def check_vocabulary(source: DraftSource) -> None:
    """Raise Unsupported if the config's vocabulary size is not the base model's."""
    actual = source.base.vocab_size
    check_size(source, "vocab_size", source.fields.number("vocab_size", actual), actual)


def own_embeddings(source: DraftSource, width: int) -> dict[str, Tensor]:
    """The source's own embeddings [V, width] by their name; {} if the draft uses the base model's. Raises BadInput if
    they have another shape, or are missing in a draft of another hidden size."""
    base = source.base
    if not source.has(EMBEDDINGS):
        if width != source.base.hidden_size:
            raise BadInput(
                f"{source.name}: {EMBEDDINGS} is missing, and the base model's cannot be used: "
                f"the draft's hidden size is {width}, the base model's {source.base.hidden_size}."
            )
        return {}
    own = source.take(EMBEDDINGS, (source.base.vocab_size, width))
    shared = width == base.hidden_size and base.embeddings is not None and same_values(own, base.embeddings)
    return {} if shared else {EMBEDDINGS: own}
