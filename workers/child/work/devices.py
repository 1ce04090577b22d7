"""Which device this worker computes on, by the name its lease has, and the models that are loaded onto it."""

from dataclasses import dataclass
from typing import Any

import torch

from models.base import decoding_dtype, load_base, pick_device
from models.checkpoints import load_draft
from speculoos.priority import lower_priority
from tracking.tables import Base, Checkpoint
from workers.child.context import JobContext


@dataclass(frozen=True)
class LoadedModels:
    """A base and, where there is a checkpoint, its draft and its row, on the device that the job holds."""

    device: str
    dtype: str
    base: Any
    draft: Any = None
    checkpoint: Any = None


def load_models(context: JobContext, base_id: str, checkpoint_id: str = "", dtype: str = "") -> LoadedModels:
    """Bring the files, take the device, then load; `dtype` "" as the settings say. Raises NotFound or Conflict where a
    row cannot be used, Damaged where files are not as they were."""
    base_row = context.usable(Base, base_id)
    row = context.usable(Checkpoint, checkpoint_id) if checkpoint_id else None
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
