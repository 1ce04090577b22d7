"""Takes the device lease of a job and loads models onto the device."""

from dataclasses import dataclass
from typing import Any

import torch

from models.base import decoding_dtype, load_base, pick_device
from models.checkpoints import load_draft
from speculoos.other_work import lower_priority
from tracking.tables import Base, Checkpoint
from workers.child.context import JobContext


@dataclass(frozen=True)
class LoadedModels:
    """A base model on the leased device; with a checkpoint also its draft and its row."""

    device: str
    dtype: str
    base: Any
    draft: Any = None
    checkpoint: Any = None


def load_models(context: JobContext, base_id: str, checkpoint_id: str = "", dtype: str = "") -> LoadedModels:
    """Download the files, take the device, then load; `dtype` "" uses the settings. Raises NotFound or Conflict if a
    row cannot be used, Damaged if files have changed."""
    base_row = context.input_with_files(Base, base_id)
    row = context.input_with_files(Checkpoint, checkpoint_id) if checkpoint_id else None
    device = take_device(context)
    dtype = decoding_dtype(dtype or context.settings.dtype, device)
    base = load_base(base_row.path, dtype, device, context.known(base_row), context.sums)
    draft = load_draft(row.path, base, base_row.weights_sha256, row.sha256, context.sums) if row else None
    context.begin()
    return LoadedModels(device, dtype, base, draft, row)


def take_device(context: JobContext) -> str:
    """Take the lease of the device in the settings (SPECULOOS_DEVICE) and return its name, such as `cuda:0`."""
    device = pick_device(context.settings.device)
    name = f"cuda:{device.index or torch.cuda.current_device()}" if device.type == "cuda" else device.type
    context.hold_device(name)
    lower_priority(name)
    return name
