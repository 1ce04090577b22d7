"""The checkpoint's own files, as they are."""

from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import Facts
from formats.plan import ExportPlan
from models.archive import archive_files


def own(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """Nothing is written anew."""
    return ExportPlan([], {}, weights="", copies=tuple(archive_files(checkpoint.path)))
