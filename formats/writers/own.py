"""The checkpoint's own files, as they are."""

from typing import Any

from formats.checkpoint import Checkpoint
from formats.facts import Facts
from formats.plan import Plan
from models.archive import archive_files


def own(checkpoint: Checkpoint, base: Any, facts: Facts) -> Plan:
    """Nothing is written anew."""
    return Plan([], {}, weights="", copies=tuple(archive_files(checkpoint.path)))
