"""Which device this worker computes on, by the name its lease has."""

import torch

from models.base import pick_device
from speculoos.priority import give_way
from workers.child.context import Context


def take_device(context: Context) -> str:
    """Take the lease of the device in the settings (SPECULOOS_DEVICE) and return its name, such as `cuda:0`."""
    device = pick_device(context.settings.device)
    name = f"cuda:{device.index or torch.cuda.current_device()}" if device.type == "cuda" else device.type
    context.hold_device(name)
    give_way(name)
    return name
