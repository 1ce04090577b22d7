"""The layout of a source, from its config and tensor names, and the reader of each layout."""

from collections.abc import Callable

from formats.imports import causal, eagle, eagle3, medusa, own
from formats.imports.base import BaseOutline
from formats.imports.draft import ImportedDraft
from formats.imports.names import detect
from formats.imports.source import DraftSource
from speculoos.errors import BadInput

READERS: dict[str, Callable[[DraftSource, BaseOutline, str], ImportedDraft]] = {
    "speculoos": own.read,
    "medusa": medusa.read,
    "vllm-medusa": medusa.read,
    "eagle": eagle.read,
    "eagle3": eagle3.read,
    "modelopt-eagle3": eagle3.read,
    eagle3.MODELOPT_TWICE: eagle3.read,
    "vllm-eagle3": eagle3.read,
    "speculators": eagle3.read,
    "model": causal.read,
}
"""The reader of each layout in `names.TITLES`: `read(source, base, layout)`."""


def find_layout(source: DraftSource, name: str) -> str:
    """`name`, or the detected layout if it is empty. Raises BadInput for an unknown name."""
    if name and name not in READERS:
        raise BadInput(f"--format {name}: expected one of {', '.join(READERS)}.")
    return name or detect(source.config, source.entries, source.name)
