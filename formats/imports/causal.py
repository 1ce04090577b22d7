"""Any small causal language model as a standalone draft, without training: its tokens must be the base's."""

from dataclasses import replace
from pathlib import Path

import torch

from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft
from formats.imports.source import DraftSource
from models import identity
from models.base import load_tokenizer
from models.standalone import StandaloneDraft
from speculoos.errors import BadInput, SpeculoosError

CPU = torch.device("cpu")


def read(source: DraftSource, base: BaseOutline, layout: str) -> ReadDraft:
    """The model, in the precision it is stored in. Raises Unsupported where its tokenizer is not the base's."""
    if source.folder.resolve() == base.folder.resolve():
        raise BadInput(f"{source.name}: is the base itself; a draft must be smaller to be of use.")
    tokenizer = load_tokenizer(base.folder)
    target = replace(base.base, tokenizer=tokenizer, dtype=getattr(torch, source.dtype or "float32"), device=CPU)
    folder = _whole(source)
    try:
        draft = StandaloneDraft.from_folder(folder, target)
    except SpeculoosError as error:
        raise type(error)(str(error).replace(str(folder), source.name), error.hint) from None
    return ReadDraft(draft, draft.tensors())


def _whole(source: DraftSource) -> Path:
    """A folder with its configs, tokenizer and safetensors: its own, or one beside rewritten pickles."""
    if not source.rewritten:
        return source.folder
    made = source.rewritten[0].parent / "model"
    made.mkdir()
    for path in identity.read_files(source.folder):
        (made / path.name).symlink_to(path.absolute())
    for number, path in enumerate(source.rewritten, 1):
        single = len(source.rewritten) == 1
        (made / ("model.safetensors" if single else f"model-{number:05}.safetensors")).symlink_to(path.absolute())
    return made
