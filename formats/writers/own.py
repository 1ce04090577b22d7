"""The workbench's own format: the checkpoint's files, copied."""

from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.plan import ExportPlan
from models.archive import archive_files


def own(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """A plan that only copies files."""
    return ExportPlan([], {}, weights="", copies=tuple(archive_files(checkpoint.path)))
