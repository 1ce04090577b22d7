"""Speculoos as a library; docs/library.md has examples. Importing this package imports nothing else."""

from importlib import import_module
from pathlib import Path
from typing import Any


def load(folder: str | Path, **options: Any) -> Any:
    """Load a draft model with its base model from a folder, for generation and further training. Returns a
    `training.convert.TrainableDraft`; takes the options of `training.convert.load`."""
    return import_module("training.convert").load(folder, **options)
