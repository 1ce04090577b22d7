"""Speculoos as a library; docs/library.md has examples. Importing this loads nothing else."""

from importlib import import_module
from pathlib import Path
from typing import Any


def load(folder: str | Path, **options: Any) -> Any:
    """Restore a draft with its base from a folder, to generate and to train further: a
    `training.convert.TrainableDraft`. Options are those of `training.convert.load`."""
    return import_module("training.convert").load(folder, **options)
