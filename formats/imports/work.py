"""The part of an import that runs in the limited child: reads a third party's folder and writes a checkpoint."""

from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from formats.imports.dflash import read_dflash
from formats.imports.eagle import read_eagle, read_eagle3
from formats.imports.medusa import read_medusa
from formats.imports.names import TITLES, named_base_of
from formats.imports.peagle import read_peagle
from formats.imports.run import NO_WEIGHTS, Conversion
from formats.imports.source import (
    BaseOutline,
    DraftSource,
    ImportedDraft,
    check_size,
    fill,
    pickled_files,
    safetensors_files,
)
from models import identity, pickles
from models.base import load_tokenizer
from models.checkpoints import SPECULOOS_KEYS, read_config, save_draft, update_draft_config, verify_sums
from models.hub import last_part
from models.methods import find_method, trees
from models.standalone import StandaloneDraft
from speculoos.errors import BadInput, SpeculoosError, Unsupported

TREE_SIZE = ("nodes", "expected_tau", "speedup")
"""Keys of a tree size in the record of a tuning, which the card shows."""
VOCABULARIES = ("tokenizer.json", "vocab.json", "tokenizer.model", "vocab.txt")


def convert(request: dict[str, str]) -> dict[str, Any]:
    """Read a draft for its base model and write `scratch`/draft; `request` contains the fields of `run.Conversion`.
    Returns {"method", "format", "title", "origin", "notices", "licence", "figures", "base_sha256"}. Raises BadInput or
    Unsupported with the file and key at fault."""
    conversion = Conversion(**request)
    try:
        return _convert(conversion, BaseOutline(conversion.base_folder, conversion.base_name))
    except SpeculoosError as error:
        raise type(error)(str(error).replace(conversion.folder, conversion.shown), error.hint) from None


def _convert(conversion: Conversion, base: BaseOutline) -> dict[str, Any]:
    folder, scratch = Path(conversion.folder), Path(conversion.scratch)
    if conversion.layout not in ("", *TITLES):
        raise BadInput(f"--format {conversion.layout}: expected one of {', '.join(TITLES)}.")
    pickled = _converted_pickles(folder, scratch)
    source = DraftSource(folder, pickled, conversion.shown, conversion.layout, base)
    _check_tokenizer(source)
    _note_other_dtype(source)
    draft = READERS.get(source.layout, read_eagle3)(source)
    _note_other_base(source, conversion)
    report = {
        "format": source.layout,
        "title": TITLES[source.layout],
        "origin": conversion.origin or conversion.shown,
        "notices": source.notices,
        "licence": source.licence,
    }
    trained_on = draft.info.get("base_sha256") or conversion.base_sha256
    info = {**draft.info, "base": source.base.name, "base_sha256": trained_on, "source": _card_source(source, report)}
    save_draft(scratch / "draft", draft.network, info, tensors=draft.tensors)
    if draft.drafting:
        update_draft_config(scratch / "draft", **draft.drafting)
    figures = draft.info.get("figures") or {}
    return {**report, "method": draft.network.method, "figures": figures, "base_sha256": trained_on}


def _converted_pickles(folder: Path, scratch: Path) -> list[Path]:
    """Convert the pickles in `folder` to safetensors files in `scratch`. Raises BadInput if there are no weights."""
    files = []
    for file in pickled_files(folder):
        files.append(scratch / f"{file.name}.safetensors")
        pickles.convert(file, files[-1])
    if not files and not safetensors_files(folder):
        raise BadInput(f"{folder}: {NO_WEIGHTS}")
    return files


def _note_other_dtype(source: DraftSource) -> None:
    key = "torch_dtype" if source.fields.text("torch_dtype") else "dtype"
    stated = source.fields.text(key)
    if stated and source.dtype and stated.removeprefix("torch.") != source.dtype:
        source.notices.append(
            f"{key}: config.json says {stated[:40]}, but the tensors are {source.dtype} and were not converted."
        )


def _note_other_base(source: DraftSource, conversion: Conversion) -> None:
    """Only a notice, because different names of base models do not prove that the weights differ."""
    named = named_base_of(source.config)
    expected = (conversion.base_name, conversion.base_hub_id, conversion.base_folder)
    if isinstance(named, str) and last_part(named) not in map(last_part, expected):
        source.notices.append(
            f"{source.config_name} names the base model {named[:120]}, but {conversion.base_name} is selected: if they "
            "are different models, few draft tokens will be accepted; import the draft for the base model it was "
            "trained on."
        )


def _card_source(source: DraftSource, report: dict[str, Any]) -> dict[str, Any]:
    named = named_base_of(source.config)
    return {
        "origin": report["origin"],
        "format": report["title"],
        "base model": named if isinstance(named, str) else "",
        "licence": report["licence"] or "not stated",
        "notices": " ".join(report["notices"]),
    }


def _check_tokenizer(source: DraftSource) -> None:
    """Raise Unsupported if a token has different ids in the source's tokenizer, if any, and the base model's."""
    base = source.base
    files = [path for name in VOCABULARIES if (path := source.folder / name).is_file()]
    pairs = [(path, base.folder / path.name) for path in files]
    if all(other.is_file() and path.read_bytes() == other.read_bytes() for path, other in pairs):
        return
    file = files[0]
    if file.name == "tokenizer.json":
        actual = _tokenizer_vocabulary(file)
    elif file.name == "vocab.json":
        actual = {token: number for token, number in identity.read_json(file).items() if type(number) is int}
    else:
        source.notices.append(f"{file.name}: cannot be compared with the tokenizer of {base.name} and was ignored.")
        return
    expected = load_tokenizer(base.folder).get_vocab()
    wrong = next((token for token, number in sorted(actual.items()) if expected.get(token) != number), None)
    if wrong is not None:
        raise Unsupported(
            f"{source.name}/{file.name}: differs from the tokenizer of {base.name}: the id of {wrong!r} is "
            f"{actual[wrong]}, not {expected.get(wrong, 'none')}; choose the base model the draft was trained for."
        )


def _tokenizer_vocabulary(file: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except BaseException as error:  # a Rust panic in tokenizers is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise BadInput(f"{file.name}: the draft's tokenizer cannot be read ({str(error)[:120]}).") from None


def _read_own(source: DraftSource) -> ImportedDraft:
    """The draft with its training metadata and tuned settings. Raises Damaged if its SHA256SUMS do not match."""
    config = read_config(source.folder)
    verify_sums(source.folder)
    method, fields = config["speculoos_method"], source.fields
    check_size(source, "vocab_size", fields.get("vocab_size", source.base.vocab_size), source.base.vocab_size)
    if find_method(method).shares_hidden_size:
        width = fields.get("target_hidden_size") or fields.get("hidden_size", source.base.hidden_size)
        check_size(source, "hidden_size", width, source.base.hidden_size)
    shape = {key: value for key, value in config.items() if key not in (*SPECULOOS_KEYS, "dtype")}
    draft = fill(method, shape, source, {})
    _check_tuned(source, method, config)
    training = config.get("training", {})
    base_sha256 = str(config.get("base_sha256", ""))
    draft.info = {**training, "figures": figures(training.get("figures")), "base_sha256": base_sha256}
    draft.drafting = {key: config[key] for key in ("drafting", "tuning") if config.get(key)}
    return draft


def _check_tuned(source: DraftSource, method: str, config: Mapping[str, Any]) -> None:
    """Raise BadInput for tuned settings that the drafter does not take, or a record of them that no card can show."""
    try:
        trees.check_options(method, config.get("drafting", {}), find_method(method).drafting)
    except BadInput as error:
        raise BadInput(f"{source.config_name}: drafting: {error}") from None
    tuning = config.get("tuning", {})
    verdict, sizes = tuning.get("verdict", ""), tuning.get("sizes", [])
    if not isinstance(verdict, str) or not (isinstance(sizes, list) and all(map(_is_size, sizes))):
        raise BadInput(f"{source.config_name}: tuning: not a record of a tuning; remove the keys drafting and tuning.")


def _is_size(size: Any) -> bool:
    return isinstance(size, dict) and all(isinstance(size.get(key), int | float) for key in TREE_SIZE)


def figures(values: Any) -> dict[str, Any]:
    """The valid values of a third party's figures: finite numbers, lists of them, short strings."""

    def valid(value: Any) -> bool:
        if isinstance(value, str | list) and len(value) > (200 if isinstance(value, str) else 100):
            return False
        items = value if isinstance(value, list) else [value]
        return isinstance(value, str) or all(isinstance(item, int | float) and isfinite(item) for item in items)

    values = values if isinstance(values, Mapping) else {}
    return {str(key)[:80]: value for key, value in values.items() if valid(value)}


def _read_model(source: DraftSource) -> ImportedDraft:
    """The model in its stored precision. Raises Unsupported if its tokenizer is not the base model's."""
    if source.folder.resolve() == source.base.folder.resolve():
        raise BadInput(f"{source.name}: this is the base model itself; choose a smaller model as the draft.")
    dtype, device = getattr(torch, source.dtype or "float32"), torch.device("cpu")
    tokenizer = load_tokenizer(source.base.folder)
    target = replace(source.base.base, tokenizer=tokenizer, dtype=dtype, device=device)
    folder = _model_folder(source)
    try:
        draft = StandaloneDraft.from_folder(folder, target)
    except SpeculoosError as error:
        raise type(error)(str(error).replace(str(folder), source.name), error.hint) from None
    return ImportedDraft(draft, draft.tensors())


def _model_folder(source: DraftSource) -> Path:
    """A Hugging Face folder: the source's own, or one with links to the converted pickles."""
    if not source.converted:
        return source.folder
    folder = source.converted[0].parent / "model"
    folder.mkdir()
    for path in identity.read_files(source.folder):
        (folder / path.name).symlink_to(path.absolute())
    for number, path in enumerate(source.converted, 1):
        single = len(source.converted) == 1
        (folder / ("model.safetensors" if single else f"model-{number:05}.safetensors")).symlink_to(path.absolute())
    return folder


READERS = {
    "speculoos": _read_own,
    "medusa": read_medusa,
    "vllm-medusa": read_medusa,
    "eagle": read_eagle,
    "peagle": read_peagle,
    "dflash": read_dflash,
    "speculators-dflash": read_dflash,
    "model": _read_model,
}
"""The reader of each layout in `names.TITLES`; all others are EAGLE-3."""
