"""What an import does in its limited child: reads a folder that somebody else filled, writes a checkpoint of ours."""

from pathlib import Path
from typing import Any

from formats.imports import pickles, source
from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft
from formats.imports.layouts import LAYOUTS, find_layout
from formats.imports.source import Source
from formats.imports.tokens import check_tokenizer
from models.checkpoints import amend, save_draft
from speculoos.errors import BadInput, SpeculoosError


def convert(
    folder: str, shown: str, base_folder: str, base_name: str, base_sha256: str, scratch: str, layout: str
) -> dict[str, Any]:
    """Read the draft in `folder` (called `shown` in messages) for the base and write `scratch`/draft.

    Returns {"method", "format", "title", "notices", "licence", "figures"}. Raises BadInput or Unsupported, naming the
    file and key at fault.
    """
    try:
        return _convert(Path(folder), shown, BaseOutline(base_folder, base_name), base_sha256, Path(scratch), layout)
    except SpeculoosError as error:
        raise type(error)(str(error).replace(folder, shown), error.hint) from None


def _convert(
    folder: Path, shown: str, base: BaseOutline, base_sha256: str, scratch: Path, asked: str
) -> dict[str, Any]:
    found = Source(folder, _rewritten(folder, scratch), shown)
    layout = find_layout(found, asked)
    said = [check_tokenizer(folder, shown, base.folder, base.name), _other_dtype(found)]
    draft = LAYOUTS[layout].read(found, base, layout)
    notices = [*filter(None, said), *draft.notices]
    report = {"format": layout, "title": LAYOUTS[layout].title, "notices": notices, "licence": found.licence}
    _write(scratch / "draft", draft, base, base_sha256, _source(shown, found, report))
    return {**report, "method": draft.network.method, "figures": draft.info.get("figures") or {}}


def _rewritten(folder: Path, scratch: Path) -> list[Path]:
    """Its pickles as safetensors in `scratch`."""
    made = []
    for file in source.pickled_files(folder):
        made.append(scratch / f"{file.name}.safetensors")
        pickles.convert(file, made[-1])
    if not made and not source.safetensors_files(folder):
        raise BadInput(
            f"{folder}: no weights of a draft here (model.safetensors, pytorch_model.bin, medusa_lm_head.pt)."
        )
    return made


def _other_dtype(found: Source) -> str:
    """A notice where the config says another precision than most numbers are stored in."""
    stated = found.fields.text("torch_dtype") or found.fields.text("dtype")
    if not stated or not found.dtype or stated.removeprefix("torch.") == found.dtype:
        return ""
    key = "torch_dtype" if found.fields.text("torch_dtype") else "dtype"
    return f"{key}: config.json says {stated[:40]}, the numbers are stored as {found.dtype} and were kept so."


def _source(shown: str, found: Source, report: dict[str, Any]) -> dict[str, Any]:
    """For the card: where it came from."""
    made_for = found.config.get("base_model_name_or_path") or _verifier(found.config)
    return {
        "came from": shown,
        "format": report["title"],
        "made for": made_for if isinstance(made_for, str) else "",
        "licence": report["licence"] or "not stated",
        "notices": " ".join(report["notices"]),
    }


def _verifier(config: dict[str, Any]) -> Any:
    section = config.get("speculators_config")
    verifier = section.get("verifier") if isinstance(section, dict) else None
    return verifier.get("name_or_path") if isinstance(verifier, dict) else None


def _write(folder: Path, draft: ReadDraft, base: BaseOutline, base_sha256: str, came_from: dict[str, Any]) -> None:
    trained_on = draft.info.get("base_sha256") or base_sha256
    info = {**draft.info, "base": base.name, "base_sha256": trained_on, "source": came_from}
    save_draft(folder, draft.network, info, tensors=draft.tensors)
    if draft.drafting:
        amend(folder, **draft.drafting)
