"""What an import does in its limited child: reads a folder that somebody else filled, writes a checkpoint of ours."""

from pathlib import Path
from typing import Any

from formats.imports import source
from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft
from formats.imports.layouts import READERS, find_layout
from formats.imports.names import TITLES, made_for
from formats.imports.run import Conversion
from formats.imports.source import DraftSource
from formats.imports.tokens import check_tokenizer
from models import pickles
from models.checkpoints import amend, save_draft
from models.hub import last_part
from speculoos.errors import BadInput, SpeculoosError


def convert(request: dict[str, str]) -> dict[str, Any]:
    """Read a draft for its base and write `scratch`/draft; `request` holds the fields of `run.Asked`.

    Returns {"method", "format", "title", "origin", "notices", "licence", "figures"}. Raises BadInput or Unsupported,
    naming the file and key at fault.
    """
    conversion = Conversion(**request)
    try:
        return _convert(conversion, BaseOutline(conversion.base_folder, conversion.base_name))
    except SpeculoosError as error:
        raise type(error)(str(error).replace(conversion.folder, conversion.shown), error.hint) from None


def _convert(conversion: Conversion, base: BaseOutline) -> dict[str, Any]:
    folder, scratch = Path(conversion.folder), Path(conversion.scratch)
    source = DraftSource(folder, _rewritten(folder, scratch), conversion.shown, bool(conversion.layout))
    layout = find_layout(source, conversion.layout)
    notices = [check_tokenizer(folder, conversion.shown, base.folder, base.name), _other_dtype(source)]
    draft = READERS[layout](source, base, layout)
    notices += [*draft.notices, _other_base(source, conversion)]
    report = {
        **{"format": layout, "title": TITLES[layout], "origin": conversion.origin or conversion.shown},
        **{"notices": [*filter(None, notices)], "licence": source.licence},
    }
    _write(scratch / "draft", draft, base, conversion.base_sha256, _source(source, report))
    trained_on = draft.info.get("base_sha256") or conversion.base_sha256
    figures = draft.info.get("figures") or {}
    return {**report, "method": draft.network.method, "figures": figures, "base_sha256": trained_on}


def _rewritten(folder: Path, scratch: Path) -> list[Path]:
    """Its pickles as safetensors in `scratch`."""
    files = []
    for file in source.pickled_files(folder):
        files.append(scratch / f"{file.name}.safetensors")
        pickles.convert(file, files[-1])
    if not files and not source.safetensors_files(folder):
        raise BadInput(
            f"{folder}: no weights of a draft here (model.safetensors, pytorch_model.bin, medusa_lm_head.pt)."
        )
    return files


def _other_dtype(source: DraftSource) -> str:
    """A notice where the config says another precision than most numbers are stored in."""
    stated = source.fields.text("torch_dtype") or source.fields.text("dtype")
    if not stated or not source.dtype or stated.removeprefix("torch.") == source.dtype:
        return ""
    key = "torch_dtype" if source.fields.text("torch_dtype") else "dtype"
    return f"{key}: config.json says {stated[:40]}, the numbers are stored as {source.dtype} and were kept so."


def _other_base(source: DraftSource, conversion: Conversion) -> str:
    """A notice where the config names a base by another name than the chosen one has. Names are no proof that the
    weights differ, so this refuses nothing."""
    named = made_for(source.config)
    known = (conversion.base_name, conversion.base_hub_id, conversion.base_folder)
    if not isinstance(named, str) or last_part(named) in {last_part(name) for name in known}:
        return ""
    return (
        f"{source.where} names the base {named[:120]}, and the base chosen here is {conversion.base_name}: if they are "
        "different models, few draft tokens will be accepted; import the draft for the base it was trained on."
    )


def _source(source: DraftSource, report: dict[str, Any]) -> dict[str, Any]:
    """For the card: where it came from."""
    named = made_for(source.config)
    return {
        "came from": report["origin"],
        "format": report["title"],
        "made for": named if isinstance(named, str) else "",
        "licence": report["licence"] or "not stated",
        "notices": " ".join(report["notices"]),
    }


def _write(folder: Path, draft: ReadDraft, base: BaseOutline, base_sha256: str, came_from: dict[str, Any]) -> None:
    trained_on = draft.info.get("base_sha256") or base_sha256
    info = {**draft.info, "base": base.name, "base_sha256": trained_on, "source": came_from}
    save_draft(folder, draft.network, info, tensors=draft.tensors)
    if draft.drafting:
        amend(folder, **draft.drafting)
