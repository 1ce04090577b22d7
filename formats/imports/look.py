"""A first look at a published draft, before a job reads it: what it is and whether it can be for a base, by its
config.json and the headers of its weights. No torch, no weights, nothing larger than a header; what needs more than
that the job finds.
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from formats.imports.fields import Fields
from formats.imports.names import SECTIONS, TITLES, detect, made_for, medusa_name, plain_name
from models.hub import PICKLES, choose_draft
from models.identity import FLOATS, TensorEntry, read_json, tensors_of
from models.methods import METHODS
from speculoos.errors import BadInput, SpeculoosError
from speculoos.sums import SUMS

MOST_HEADER, MOST_CONFIG = 4 << 20, 1 << 20
"""Bytes that are looked at of a header and of a config; those of known drafts have some kilobytes."""
NO_WEIGHTS = "no weights of a draft here; expected model.safetensors, or pytorch_model.bin or medusa_lm_head.pt."
OTHER_BASE = "choose the base the draft was made for."
METHODS_OF = {"medusa": "medusa", "vllm-medusa": "medusa", "eagle": "eagle", "model": "draft"}
"""What a layout holds; a checkpoint of ours says it itself, and the others are EAGLE-3's."""


@dataclass(frozen=True)
class ExpectedDraft:
    """What is known of the base a draft is for: name, hidden size and vocabulary (0 where not known), and for each
    method why the base cannot carry it."""

    name: str
    hidden_size: int = 0
    vocabulary: int = 0
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DraftInspection:
    """`facts` are (name, value) for people; `refused` says in one sentence why the draft cannot be for the base."""

    facts: tuple[tuple[str, str], ...]
    refused: str = ""


def draft_files(files: Sequence[Path]) -> list[Path]:
    """Those of `files` that a draft consists of. Raises BadInput where none has weights, or two have one name."""
    names = Counter(path.name for path in files)
    chosen = {*choose_draft({name: (0, "") for name in names}), SUMS} & {*names}
    if not any(_is_weights(name) for name in chosen):
        zipped = next((name for name in names if name.lower().endswith(".zip")), "")
        raise BadInput(f"{zipped}: unpack it and choose the files in it." if zipped else f"There are {NO_WEIGHTS}")
    if twice := next((name for name in sorted(chosen) if names[name] > 1), ""):
        raise BadInput(f"There are two files called {twice}; keep one of them.")
    return [path for path in files if path.name in chosen]


def look(files: Sequence[Path], base: ExpectedDraft, layout: str = "", shown: str = "upload") -> DraftInspection:
    """What the draft in `files` (those of `draft_files`) is. `layout` where somebody said which one it is; `shown` is
    what messages call it.

    Raises BadInput or Unsupported for what is damaged or of no known kind.
    """
    try:
        return _look({path.name: path for path in files}, base, layout, shown)
    except SpeculoosError as error:
        said = str(error)
        for place in sorted({f"{path.parent}/" for path in files}, key=len, reverse=True):
            said = said.replace(place, "")
        raise type(error)(said, error.hint) from None


def _look(files: Mapping[str, Path], base: ExpectedDraft, layout: str, shown: str) -> DraftInspection:
    config = _config(files)
    weights = [path for name, path in files.items() if name.endswith(".safetensors")]
    if not weights:
        return _unread(files, "a pickle; the job reads it in a process of its own and runs nothing that is in it")
    if any(_header(path) > MOST_HEADER for path in weights):
        return _unread(files, "its header is too large for a first look")
    entries = {entry.name: entry for path in weights for entry in tensors_of(path)}
    layout = layout or detect(config, entries, shown)
    fields = Fields(f"{shown}/config.json", config, *(config.get(name) for name in SECTIONS))
    method = _method(layout, config)
    rename = medusa_name if method == "medusa" else plain_name
    shapes = {rename(name): entry.shape for name, entry in entries.items()}  # by names that layouts of a method share
    width = _width(fields, shapes, method)
    named = made_for(config) or config.get("base")
    facts = [
        ("Format", TITLES[layout]),
        ("Method", _title(method) if layout in ("speculoos", "model") else ""),
        ("Made of", _parts(shapes, method)),
        ("Hidden size", f"{width:,}" if width else ""),
        ("Tokens it knows", _tokens(fields, shapes, base)),
        ("Made for", named[:120] if isinstance(named, str) else ""),
        ("Weights", _stored(entries)),
    ]
    return DraftInspection(tuple(fact for fact in facts if fact[1]), _refusal(fields, shapes, method, width, base))


def _config(files: Mapping[str, Path]) -> dict[str, Any]:
    path = files.get("config.json")
    if path is None:
        return {}
    if path.stat().st_size > MOST_CONFIG:
        raise BadInput(f"config.json has {path.stat().st_size / 1e6:.1f} MB, which no draft's has; fetch it again.")
    return read_json(path)


def _header(path: Path) -> int:
    """Bytes of a safetensors file's header, as it says itself."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(8), "little")


def _unread(files: Mapping[str, Path], why: str) -> DraftInspection:
    named = sorted(name for name in files if _is_weights(name))
    return DraftInspection((("Weights", f"{', '.join(named)}: {why}"),))


def _is_weights(name: str) -> bool:
    return name.endswith(".safetensors") or PICKLES.fullmatch(name) is not None


def _method(layout: str, config: Mapping[str, Any]) -> str:
    if layout == "speculoos":
        return str(config.get("speculoos_method"))[:80]
    return METHODS_OF.get(layout, "eagle3")


def _title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method


def _parts(shapes: Collection[str], method: str) -> str:
    if method == "medusa":
        heads = _numbers(shapes, r"(?:blocks|lm_heads)\.(\d+)\.")
        return _counted(heads, "head") + f" of {_counted(_numbers(shapes, r'blocks[.]0[.]([0-9]+)[.]'), 'block')}"
    return _counted(_numbers(shapes, r"(?:.*\.)?(?:layers|h)\.(\d+)\."), "layer")


def _numbers(names: Collection[str], pattern: str) -> int:
    return len({found[1] for name in names if (found := re.match(pattern, name))})


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "s")


def _width(fields: Fields, shapes: Mapping[str, tuple[int, ...]], method: str) -> int:
    """Of the base's hidden states that the draft reads; 0 where it reads none or nothing says."""
    if method == "medusa":
        named = ("blocks.0.0.linear.weight", "lm_heads.0.weight")
        return next((shapes[name][-1] for name in named if shapes.get(name)), 0)
    if method in METHODS and not METHODS[method].shares_hidden_size:
        return 0
    width = fields.get("target_hidden_size") or fields.get("hidden_size")
    return width if type(width) is int else 0


def _tokens(fields: Fields, shapes: Mapping[str, tuple[int, ...]], base: ExpectedDraft) -> str:
    """`32,000 of 128,256`; only where the draft's head has fewer rows."""
    rows = next((shapes[n][0] for n in ("lm_head.weight", "lm_heads.0.weight") if shapes.get(n)), 0)
    all_tokens = base.vocabulary or fields.get("vocab_size")
    return f"{rows:,} of {all_tokens:,}" if rows and type(all_tokens) is int and rows < all_tokens else ""


def _stored(entries: Mapping[str, TensorEntry]) -> str:
    sizes: Counter[str] = Counter()
    for entry in entries.values():
        sizes[entry.dtype] += entry.end - entry.start
    kind, total = sizes.most_common(1)[0][0] if sizes else "", sum(sizes.values())
    return f"{_counted(len(entries), 'tensor')} as {FLOATS.get(kind, kind)}, {total / 1e6:,.1f} MB"


def _refusal(
    fields: Fields, shapes: Mapping[str, tuple[int, ...]], method: str, width: int, base: ExpectedDraft
) -> str:
    """What the job would say later, where that is certain."""
    if base.hidden_size and width and width != base.hidden_size:
        return f"Its hidden size is {width:,} and that of {base.name} {base.hidden_size:,}; {OTHER_BASE}"
    stated, chosen = fields.get("vocab_size"), "token_map" in shapes or fields.get("truncated_vocab_size")
    whole = type(stated) is int and method != "draft" and not chosen
    if whole and base.vocabulary and stated != base.vocabulary:
        return f"It is for a vocabulary of {stated:,} tokens and {base.name} has {base.vocabulary:,}; {OTHER_BASE}"
    if reason := base.refused.get(method):
        return f"{base.name} cannot carry it: {reason}"
    return ""
