"""The part of an import that runs in the limited child: reads a third party's folder and writes a checkpoint."""

from pathlib import Path
from typing import Any

from formats.imports import source
from formats.imports.base import BaseOutline
from formats.imports.draft import ImportedDraft
from formats.imports.layouts import READERS, find_layout
from formats.imports.names import TITLES, named_base_of
from formats.imports.run import Conversion
from formats.imports.source import DraftSource
from formats.imports.tokens import check_tokenizer
from models import pickles
from models.checkpoints import save_draft, update_draft_config
from models.hub import last_part
from speculoos.errors import BadInput, SpeculoosError


def convert(request: dict[str, str]) -> dict[str, Any]:
    """Read a draft for its base model and write `scratch`/draft; `request` contains the fields of `run.Conversion`.

    Returns {"method", "format", "title", "origin", "notices", "licence", "figures", "base_sha256"}. Raises BadInput or
    Unsupported with the file and key at fault.
    """
    conversion = Conversion(**request)
    try:
        return _convert(conversion, BaseOutline(conversion.base_folder, conversion.base_name))
    except SpeculoosError as error:
        raise type(error)(str(error).replace(conversion.folder, conversion.shown), error.hint) from None


def _convert(conversion: Conversion, base: BaseOutline) -> dict[str, Any]:
    folder, scratch = Path(conversion.folder), Path(conversion.scratch)
    source = DraftSource(folder, _converted_pickles(folder, scratch), conversion.shown, bool(conversion.layout))
    layout = find_layout(source, conversion.layout)
    notices = [check_tokenizer(folder, conversion.shown, base.folder, base.name), _other_dtype(source)]
    draft = READERS[layout](source, base, layout)
    notices += [*draft.notices, _other_base(source, conversion)]
    report = {
        "format": layout,
        "title": TITLES[layout],
        "origin": conversion.origin or conversion.shown,
        "notices": [*filter(None, notices)],
        "licence": source.licence,
    }
    _write(scratch / "draft", draft, base, conversion.base_sha256, _card_source(source, report))
    trained_on = draft.info.get("base_sha256") or conversion.base_sha256
    figures = draft.info.get("figures") or {}
    return {**report, "method": draft.network.method, "figures": figures, "base_sha256": trained_on}


def _converted_pickles(folder: Path, scratch: Path) -> list[Path]:
    """Convert the pickles in `folder` to safetensors files in `scratch`. Raises BadInput if there are no weights."""
    files = []
    for file in source.pickled_files(folder):
        files.append(scratch / f"{file.name}.safetensors")
        pickles.convert(file, files[-1])
    if not files and not source.safetensors_files(folder):
        raise BadInput(
            f"{folder}: no weights of a draft; add model.safetensors, pytorch_model.bin or medusa_lm_head.pt."
        )
    return files


def _other_dtype(source: DraftSource) -> str:
    """A notice if the precision in the config is not that of most tensors."""
    stated = source.fields.text("torch_dtype") or source.fields.text("dtype")
    if not stated or not source.dtype or stated.removeprefix("torch.") == source.dtype:
        return ""
    key = "torch_dtype" if source.fields.text("torch_dtype") else "dtype"
    return f"{key}: config.json says {stated[:40]}, but the tensors are {source.dtype} and were not converted."


def _other_base(source: DraftSource, conversion: Conversion) -> str:
    """A notice if the config names another base model than the selected one. Only a notice, because different names do
    not prove that the weights differ."""
    named = named_base_of(source.config)
    expected = (conversion.base_name, conversion.base_hub_id, conversion.base_folder)
    if not isinstance(named, str) or last_part(named) in {last_part(name) for name in expected}:
        return ""
    return (
        f"{source.config_name} names the base model {named[:120]}, but {conversion.base_name} is selected: if they are "
        "different models, few draft tokens will be accepted; import the draft for the base model it was trained on."
    )


def _card_source(source: DraftSource, report: dict[str, Any]) -> dict[str, Any]:
    """The draft's origin for the model card."""
    named = named_base_of(source.config)
    return {
        "came from": report["origin"],
        "format": report["title"],
        "made for": named if isinstance(named, str) else "",
        "licence": report["licence"] or "not stated",
        "notices": " ".join(report["notices"]),
    }


def _write(folder: Path, draft: ImportedDraft, base: BaseOutline, base_sha256: str, origin: dict[str, Any]) -> None:
    trained_on = draft.info.get("base_sha256") or base_sha256
    info = {**draft.info, "base": base.name, "base_sha256": trained_on, "source": origin}
    save_draft(folder, draft.network, info, tensors=draft.tensors)
    if draft.drafting:
        update_draft_config(folder, **draft.drafting)
