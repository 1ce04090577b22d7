"""Any small causal language model as a standalone draft, without training: its tokens must be the base's."""

from dataclasses import replace

import torch

from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft
from formats.imports.source import Source
from models.base import load_tokenizer
from models.standalone import StandaloneDraft
from speculoos.errors import BadInput

CPU = torch.device("cpu")


def read(source: Source, base: BaseOutline, layout: str) -> ReadDraft:
    """The model, in the precision it is stored in. Raises Unsupported where its tokenizer is not the base's."""
    if source.folder.resolve() == base.folder.resolve():
        raise BadInput(f"{source.name}: is the base itself; a draft must be smaller to be of use.")
    tokenizer = load_tokenizer(base.folder)
    target = replace(base.base, tokenizer=tokenizer, dtype=getattr(torch, source.dtype or "float32"), device=CPU)
    draft = StandaloneDraft.from_folder(source.folder, target)
    return ReadDraft(draft, draft.tensors())
