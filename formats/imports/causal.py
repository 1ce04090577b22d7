"""A small causal language model as a standalone draft, without training. Its tokenizer must be the base model's."""

from dataclasses import replace
from pathlib import Path

import torch

from formats.imports.base import BaseOutline
from formats.imports.draft import ImportedDraft
from formats.imports.source import DraftSource
from models import identity
from models.base import load_tokenizer
from models.standalone import StandaloneDraft
from speculoos.errors import BadInput, SpeculoosError

CPU = torch.device("cpu")


def read(source: DraftSource, base: BaseOutline, layout: str) -> ImportedDraft:
    """The model in its stored precision. Raises Unsupported if its tokenizer is not the base model's."""
    if source.folder.resolve() == base.folder.resolve():
        raise BadInput(f"{source.name}: this is the base model itself; choose a smaller model as the draft.")
    tokenizer = load_tokenizer(base.folder)
    target = replace(base.base, tokenizer=tokenizer, dtype=getattr(torch, source.dtype or "float32"), device=CPU)
    folder = _model_folder(source)
    try:
        draft = StandaloneDraft.from_folder(folder, target)
    except SpeculoosError as error:
        raise type(error)(str(error).replace(str(folder), source.name), error.hint) from None
    return ImportedDraft(draft, draft.tensors())


def _model_folder(source: DraftSource) -> Path:
    """A folder with configs, tokenizer and safetensors: the source's own, or one with links to the converted
    pickles."""
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
