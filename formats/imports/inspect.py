"""Quick inspection of a published draft before a job imports it: what it is and whether it fits a base model, from its
config.json and the headers of its weights. No torch and no weights; the job makes all further checks.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from formats.imports.fields import Fields
from formats.imports.names import SECTIONS, TITLES, detect, medusa_name, named_base_of, plain_name
from models.hub import PICKLES, choose_draft
from models.identity import FLOATS, TensorEntry, read_json, tensors_of
from models.methods import METHODS
from speculoos.checksums import CHECKSUM_FILE
from speculoos.errors import BadInput, SpeculoosError

MAX_HEADER, MAX_CONFIG = 4 << 20, 1 << 20
"""Largest header and config that are read, in bytes; those of known drafts have a few kilobytes."""
NO_WEIGHTS = "no weights of a draft; add model.safetensors, pytorch_model.bin or medusa_lm_head.pt."
OTHER_BASE = "choose the base model the draft was trained for."
METHODS_OF = {"medusa": "medusa", "vllm-medusa": "medusa", "eagle": "eagle", "model": "draft"}
"""The method of a layout. A Speculoos checkpoint names its method itself; all other layouts are EAGLE-3."""


@dataclass(frozen=True)
class ExpectedDraft:
    """The base model of a draft: name, hidden size and vocabulary size (0 if unknown); `refused` gives, by method, the
    reason why the base model does not support it."""

    name: str
    hidden_size: int = 0
    vocabulary: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DraftInspection:
    """`facts` are (label, value) pairs for the page; `refused` is one sentence why the draft does not fit the base
    model, or ""."""

    facts: tuple[tuple[str, str], ...]
    refused: str = ""


def draft_files(files: Sequence[Path]) -> list[Path]:
    """The files that belong to a draft. Raises BadInput if there are no weights, or two files with the same name."""
    names = Counter(path.name for path in files)
    chosen = {*choose_draft({name: (0, "") for name in names}), CHECKSUM_FILE} & {*names}
    if not any(_is_weights(name) for name in chosen):
        zipped = next((name for name in names if name.lower().endswith(".zip")), "")
        raise BadInput(f"{zipped}: unpack it and choose the files in it." if zipped else f"There are {NO_WEIGHTS}")
    if duplicate := next((name for name in sorted(chosen) if names[name] > 1), ""):
        raise BadInput(f"There are two files called {duplicate}; keep one of them.")
    return [path for path in files if path.name in chosen]


def inspect_draft(
    files: Sequence[Path], base: ExpectedDraft, layout: str = "", shown: str = "upload"
) -> DraftInspection:
    """Inspect the draft in `files` (from `draft_files`). `layout` is the user's choice, "" to detect it; `shown` is the
    draft's name in messages.

    Raises BadInput or Unsupported for damaged files or an unknown layout.
    """
    try:
        return _inspect({path.name: path for path in files}, base, layout, shown)
    except SpeculoosError as error:
        message = str(error)
        for folder in sorted({f"{path.parent}/" for path in files}, key=len, reverse=True):
            message = message.replace(folder, "")
        raise type(error)(message, error.hint) from None


def _inspect(files: Mapping[str, Path], base: ExpectedDraft, layout: str, shown: str) -> DraftInspection:
    config = _config(files)
    weights = [path for name, path in files.items() if name.endswith(".safetensors")]
    if not weights:
        return _unread(files, "a pickle; the job reads it in a separate process and runs nothing in it")
    if any(_header_size(path) > MAX_HEADER for path in weights):
        return _unread(files, "its header is too large for a quick inspection")
    entries = {entry.name: entry for path in weights for entry in tensors_of(path)}
    layout = layout or detect(config, entries, shown)
    fields = Fields(f"{shown}/config.json", config, *(config.get(name) for name in SECTIONS))
    method = _method(layout, config)
    rename = medusa_name if method == "medusa" else plain_name
    shapes = {rename(name): entry.shape for name, entry in entries.items()}  # same names for all layouts of a method
    width = _width(fields, shapes, method)
    named_base = named_base_of(config) or config.get("base")
    facts = [
        ("Format", TITLES[layout]),
        ("Method", _title(method) if layout in ("speculoos", "model") else ""),
        ("Structure", _structure(shapes, method)),
        ("Hidden size", f"{width:,}" if width else ""),
        ("Draft vocabulary", _vocabulary(fields, shapes, base)),
        ("Trained for", named_base[:120] if isinstance(named_base, str) else ""),
        ("Weights", _weights(entries)),
    ]
    return DraftInspection(tuple(fact for fact in facts if fact[1]), _refusal(fields, shapes, method, width, base))


def _config(files: Mapping[str, Path]) -> dict[str, Any]:
    path = files.get("config.json")
    if path is None:
        return {}
    if path.stat().st_size > MAX_CONFIG:
        size = path.stat().st_size / 1e6
        raise BadInput(f"config.json has {size:.1f} MB, too large for a draft's config; download it again.")
    return read_json(path)


def _header_size(path: Path) -> int:
    """Size in bytes of a safetensors file's header, from the file itself."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def _unread(files: Mapping[str, Path], reason: str) -> DraftInspection:
    names = sorted(name for name in files if _is_weights(name))
    return DraftInspection((("Weights", f"{', '.join(names)}: {reason}"),))


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") or PICKLES.fullmatch(name) is not None


def _method(layout: str, config: Mapping[str, Any]) -> str:
    if layout == "speculoos":
        return str(config.get("speculoos_method"))[:80]
    return METHODS_OF.get(layout, "eagle3")


def _title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method


def _structure(shapes: Collection[str], method: str) -> str:
    if method == "medusa":
        heads = _numbers(shapes, r"(?:blocks|lm_heads)\.(\d+)\.")
        return _counted(heads, "head") + f" of {_counted(_numbers(shapes, r'blocks[.]0[.]([0-9]+)[.]'), 'block')}"
    return _counted(_numbers(shapes, r"(?:.*\.)?(?:layers|h)\.(\d+)\."), "layer")


def _numbers(names: Collection[str], pattern: str) -> int:
    return len({match[1] for name in names if (match := re.match(pattern, name))})


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _width(fields: Fields, shapes: Mapping[str, tuple[int, ...]], method: str) -> int:
    """Size of the base model's hidden states that the draft reads; 0 if it reads none or the size is unknown."""
    if method == "medusa":
        names = ("blocks.0.0.linear.weight", "lm_heads.0.weight")
        return next((shapes[name][-1] for name in names if shapes.get(name)), 0)
    if method in METHODS and not METHODS[method].shares_hidden_size:
        return 0
    width = fields.get("target_hidden_size") or fields.get("hidden_size")
    return width if type(width) is int else 0


def _vocabulary(fields: Fields, shapes: Mapping[str, tuple[int, ...]], base: ExpectedDraft) -> str:
    """`32,000 of 128,256`; "" unless the draft's head has fewer rows."""
    rows = next((shapes[n][0] for n in ("lm_head.weight", "lm_heads.0.weight") if shapes.get(n)), 0)
    all_tokens = base.vocabulary or fields.get("vocab_size")
    return f"{rows:,} of {all_tokens:,}" if rows and type(all_tokens) is int and rows < all_tokens else ""


def _weights(entries: Mapping[str, TensorEntry]) -> str:
    sizes: Counter[str] = Counter()
    for entry in entries.values():
        sizes[entry.dtype] += entry.end - entry.start
    dtype, total = sizes.most_common(1)[0][0] if sizes else "", sum(sizes.values())
    return f"{_counted(len(entries), 'tensor')} as {FLOATS.get(dtype, dtype)}, {total / 1e6:,.1f} MB"


def _refusal(
    fields: Fields, shapes: Mapping[str, tuple[int, ...]], method: str, width: int, base: ExpectedDraft
) -> str:
    """The reason for which the job would certainly refuse the draft, or ""."""
    if base.hidden_size and width and width != base.hidden_size:
        return f"The draft's hidden size is {width:,}, {base.name} has {base.hidden_size:,}; {OTHER_BASE}"
    stated, reduced = fields.get("vocab_size"), "token_map" in shapes or fields.get("truncated_vocab_size")
    whole = type(stated) is int and method != "draft" and not reduced
    if whole and base.vocabulary and stated != base.vocabulary:
        return f"The draft has a vocabulary of {stated:,} tokens, {base.name} has {base.vocabulary:,}; {OTHER_BASE}"
    if reason := base.refused.get(method):
        return f"{base.name} does not support this draft: {reason}"
    return ""
