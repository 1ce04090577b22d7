"""The part of an import that runs in the limited child: reads a third party's folder and writes a checkpoint."""

from pathlib import Path
from typing import Any

from formats.imports import causal, eagle, eagle3, medusa, own, source
from formats.imports.base import BaseOutline
from formats.imports.names import TITLES, detect, named_base_of
from formats.imports.run import NO_WEIGHTS, Conversion
from formats.imports.source import DraftSource
from models import identity, pickles
from models.base import load_tokenizer
from models.checkpoints import save_draft, update_draft_config
from models.hub import last_part
from speculoos.errors import BadInput, SpeculoosError, Unsupported

VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")
READERS = {"speculoos": own, "medusa": medusa, "vllm-medusa": medusa, "eagle": eagle, "model": causal}
"""The module with `read(source, base, layout)` of each layout in `names.TITLES`; all others are EAGLE-3."""


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
    if (layout := conversion.layout) not in ("", *TITLES):
        raise BadInput(f"--format {layout}: expected one of {', '.join(TITLES)}.")
    layout = layout or detect(source.config, source.entries, source.name)
    notices = [_check_tokenizer(source, base), _other_dtype(source)]
    draft = READERS.get(layout, eagle3).read(source, base, layout)
    notices += [*draft.notices, _other_base(source, conversion)]
    report = {
        "format": layout,
        "title": TITLES[layout],
        "origin": conversion.origin or conversion.shown,
        "notices": [*filter(None, notices)],
        "licence": source.licence,
    }
    trained_on = draft.info.get("base_sha256") or conversion.base_sha256
    info = {**draft.info, "base": base.name, "base_sha256": trained_on, "source": _card_source(source, report)}
    save_draft(scratch / "draft", draft.network, info, tensors=draft.tensors)
    if draft.drafting:
        update_draft_config(scratch / "draft", **draft.drafting)
    figures = draft.info.get("figures") or {}
    return {**report, "method": draft.network.method, "figures": figures, "base_sha256": trained_on}


def _converted_pickles(folder: Path, scratch: Path) -> list[Path]:
    """Convert the pickles in `folder` to safetensors files in `scratch`. Raises BadInput if there are no weights."""
    files = []
    for file in source.pickled_files(folder):
        files.append(scratch / f"{file.name}.safetensors")
        pickles.convert(file, files[-1])
    if not files and not source.safetensors_files(folder):
        raise BadInput(f"{folder}: {NO_WEIGHTS}")
    return files


def _other_dtype(source: DraftSource) -> str:
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
    named = named_base_of(source.config)
    return {
        "came from": report["origin"],
        "format": report["title"],
        "made for": named if isinstance(named, str) else "",
        "licence": report["licence"] or "not stated",
        "notices": " ".join(report["notices"]),
    }


def _check_tokenizer(source: DraftSource, base: BaseOutline) -> str:
    """Raise Unsupported if a token has different ids in the source's tokenizer and the base model's. Returns a notice
    if the tokenizer cannot be compared, else ""; also "" if the source has no tokenizer."""
    files = [path for name in VOCABULARIES if (path := source.folder / name).is_file()]
    if not files or all(_same_file(path, base.folder / path.name) for path in files):
        return ""
    file = files[0]
    if file.name == "tokenizer.json":
        actual = _tokenizer_vocabulary(file)
    elif file.name == "vocab.json":
        actual = {token: number for token, number in identity.read_json(file).items() if type(number) is int}
    else:
        return f"{file.name}: cannot be compared with the tokenizer of {base.name} and was ignored."
    expected = load_tokenizer(base.folder).get_vocab()
    wrong = next((token for token, number in sorted(actual.items()) if expected.get(token) != number), None)
    if wrong is None:
        return ""
    raise Unsupported(
        f"{source.name}/{file.name}: differs from the tokenizer of {base.name}: the id of {wrong!r} is "
        f"{actual[wrong]}, not {expected.get(wrong, 'none')}; choose the base model the draft was trained for."
    )


def _same_file(one: Path, other: Path) -> bool:
    return other.is_file() and one.read_bytes() == other.read_bytes()


def _tokenizer_vocabulary(file: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except BaseException as error:  # a Rust panic in tokenizers is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise BadInput(f"{file.name}: the draft's tokenizer cannot be read ({str(error)[:120]}).") from None
