"""Which layout a source has, by its config and the names of its tensors, and who reads it."""

from collections.abc import Callable

from formats.imports import causal, eagle, eagle3, medusa, own
from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft
from formats.imports.names import detect
from formats.imports.source import DraftSource
from speculoos.errors import BadInput

READERS: dict[str, Callable[[DraftSource, BaseOutline, str], ReadDraft]] = {
    "speculoos": own.read,
    "medusa": medusa.read,
    "vllm-medusa": medusa.read,
    "eagle": eagle.read,
    "eagle3": eagle3.read,
    "modelopt-eagle3": eagle3.read,
    eagle3.TWICE: eagle3.read,
    "vllm-eagle3": eagle3.read,
    "speculators": eagle3.read,
    "model": causal.read,
}
"""Who reads a layout of `names.TITLES`: `read(source, base, layout)`."""


def find_layout(source: DraftSource, name: str) -> str:
    """`name`, or the one detected where it is empty. Raises BadInput for an unknown one."""
    if name and name not in READERS:
        raise BadInput(f"--format {name}: expected one of {', '.join(READERS)}.")
    return name or detect(source.config, source.entries, source.name)
