"""Identity of a model: hashes that do not change when its files are renamed, resharded or re-saved. No torch."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from speculoos.errors import BadInput

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")
INDEX = "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SHARDS = "pytorch_model-*-of-*.bin"
TEMPLATES = ("chat_template.jinja", "chat_template.json")
EXTRA_TOKENIZER_FILES = (
    "added_tokens.json",
    "special_tokens_map.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "tiktoken.model",
)
READ_FILES = (
    *("config.json", "generation_config.json", "tokenizer_config.json"),
    *TEMPLATES,
    *TOKENIZER_FILES,
    *EXTRA_TOKENIZER_FILES,
)
"""Files besides the weights that loading a model reads; transformers sees no others."""
FLOATS = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""{safetensors name: usual name} of the floating-point types, widest first."""
SIZES = {
    **{"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2, "BOOL": 1, "U8": 1, "I8": 1},
    "F8_E4M3": 1,
}
"""{safetensors type: bytes per element}."""
MAX_JSON = 64 << 20
CHUNK = 1 << 22


def first_set(config: Mapping[str, Any], *names: str) -> Any:
    """The first value that is not null under one of the names that families use for a size; None without any."""
    return next((config[name] for name in names if config.get(name) is not None), None)


@dataclass(frozen=True)
class TensorEntry:
    """A tensor in a safetensors file: `start` and `end` are byte offsets in `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def size(self) -> int:
        """Bytes."""
        return self.end - self.start

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, CHUNK at a time; fewer than `size` if the file is truncated."""
        with open(self.file, "rb") as file:
            file.seek(self.start)
            left = self.size
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk


def weight_files(folder: str | Path) -> list[Path]:
    """The safetensors files of a model: those in the index if there is one, else all."""
    folder = Path(folder)
    index = folder / INDEX
    if index.exists():
        return _indexed_files(index)
    single = folder / "model.safetensors"
    return [single] if single.exists() else sorted(folder.glob("*.safetensors"))


def pickled_files(folder: str | Path) -> list[Path]:
    """Pickled weight files of a folder without safetensors: those in the index if there is one. Read them only in a
    child process with limits (`models.pickles`)."""
    folder = Path(folder)
    if next(folder.glob("*.safetensors"), None):
        return []
    if (folder / PICKLED_INDEX).exists():
        return _indexed_files(folder / PICKLED_INDEX, ".bin")
    return [folder / PICKLED] if (folder / PICKLED).is_file() else sorted(folder.glob(SHARDS))


def read_files(folder: str | Path) -> list[Path]:
    return [path for name in READ_FILES if (path := Path(folder) / name).is_file()]


def tensors_of(file: Path) -> list[TensorEntry]:
    """Tensors of one safetensors file, from its header. Raises BadInput when the file is damaged."""
    try:
        with safe_open(file, "np"):
            pass  # shapes and offsets are valid, and the file is complete
    except SafetensorError as error:
        raise BadInput(f"{file}: damaged safetensors file ({error}); fetch it again.") from None
    with open(file, "rb") as handle:
        length = int.from_bytes(handle.read(8), "little")
        header = json.loads(handle.read(length))
    header.pop("__metadata__", None)
    offsets = {name: [8 + length + at for at in value["data_offsets"]] for name, value in header.items()}
    return [TensorEntry(name, v["dtype"], tuple(v["shape"]), file, *offsets[name]) for name, v in header.items()]


def tensors(folder: str | Path) -> list[TensorEntry]:
    """All tensors of a model folder, sorted by name. Raises BadInput for no tensors or a duplicate name."""
    entries = [entry for file in weight_files(folder) for entry in tensors_of(file)]
    if not entries:
        hint = "; `speculoos models add` converts its pytorch_model.bin" if pickled_files(folder) else ""
        raise BadInput(f"{folder}: no safetensors weights; only safetensors files are loaded{hint}.")
    entries.sort(key=lambda entry: entry.name)
    for one, next_one in pairwise(entries):
        if one.name == next_one.name:
            raise BadInput(f"{next_one.file}: holds {one.name}, and so does {one.file.name}; remove one of the files.")
    return entries


def write_index(folder: Path, target: Path) -> None:
    """Write the index of the weight files in `folder`, made from their contents, to the folder `target`."""
    weight_map = {entry.name: entry.file.name for entry in tensors(folder)}
    (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}), encoding="utf-8")


def weights_sha256(folder: str | Path) -> str:
    """Identity of a base: sha256 over (name, dtype, shape, bytes) of its tensors, sorted by name, and before them over
    the quantization config of a quantized base, which says what they mean. It depends on values, dtypes and names, but
    not on sharding, file names or header metadata."""
    digest = hashlib.sha256()
    if quantized := read_json(Path(folder) / "config.json").get("quantization_config"):
        digest.update(json.dumps(quantized, sort_keys=True).encode() + b"\n")
    for entry in tensors(folder):
        digest.update(json.dumps([entry.name, entry.dtype, list(entry.shape)]).encode() + b"\n")
        count = 0
        for chunk in entry.chunks():
            digest.update(chunk)
            count += len(chunk)
        if count < entry.size:
            raise BadInput(f"{entry.file}: is truncated; fetch it again.")
    return digest.hexdigest()


def tokenizer_sha256(folder: str | Path) -> str:
    """sha256 over the tokenizer's vocabulary files and the chat template; "" without a tokenizer."""
    folder = Path(folder)
    digest = hashlib.sha256()
    names = [name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for name in names:
        digest.update(name.encode() + b"\n" + (folder / name).read_bytes())
    digest.update(chat_template(folder).encode("utf-8", "surrogatepass"))
    return digest.hexdigest() if names else ""


def chat_template(folder: str | Path) -> str:
    """The chat template of a model folder; "" if none. Of several named templates ([{"name", "template"}, …] or {name:
    template}): `default`, else the first. Raises BadInput, naming the file, for an invalid template."""
    path = template_file(folder)
    if path is None:
        return ""
    if path.suffix == ".jinja":
        return _text(path)
    template = _parse_json(path)
    if isinstance(template, dict):
        template = template.get("chat_template") or ""
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        template = {str(entry.get("name")): entry.get("template") for entry in entries}
    if isinstance(template, dict):
        template = template.get("default") or next(iter(template.values()), "")
    if not isinstance(template, str):
        raise BadInput(f"{path}: chat_template: expected a text, or a list of texts with names.")
    return template


def template_file(folder: str | Path) -> Path | None:
    """The file with the chat template, or None."""
    folder = Path(folder)
    own = [folder / name for name in TEMPLATES if (folder / name).is_file()]
    config = folder / "tokenizer_config.json"
    return own[0] if own else config if read_json(config).get("chat_template") else None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, {} if the file is missing. Raises BadInput when it is not a JSON object."""
    try:
        data = _parse_json(path)
    except FileNotFoundError:
        return {}
    if not isinstance(data, dict):
        raise BadInput(f"{path}: expected a JSON object, found a {type(data).__name__}; fetch the file again.")
    return data


def _parse_json(path: Path) -> Any:
    text = _text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}: cannot be read as JSON ({error}).") from None


def _text(path: Path) -> str:
    """Raises BadInput when the file cannot be read, FileNotFoundError when it is missing."""
    try:
        if path.stat().st_size > MAX_JSON:
            raise BadInput(f"{path}: larger than {MAX_JSON >> 20} MiB, the limit for this file; fetch it again.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: cannot be read ({error}).") from None


def _indexed_files(index: Path, ending: str = ".safetensors") -> list[Path]:
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise BadInput(f"{index}: weight_map: expected an object of file names; fetch the file again.")
    for name in sorted(set(names.values())):
        if Path(name).name != name or not name.endswith(ending):
            raise BadInput(f"{index}: lists {name!r}, which is not a {ending[1:]} file of this folder; fetch it again.")
        if not (index.parent / name).is_file():
            raise BadInput(f"{index}: lists {name}, which is missing; fetch the model again.")
    return [index.parent / name for name in sorted(set(names.values()))]
