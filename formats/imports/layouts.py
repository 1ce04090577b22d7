"""Which layout a source has, by its config and the names of its tensors, and who reads it."""

from collections.abc import Callable
from dataclasses import dataclass

from formats.imports import causal, eagle, eagle3, medusa, own
from formats.imports.base import BaseOutline
from formats.imports.draft import ReadDraft
from formats.imports.names import TITLES, detect
from formats.imports.source import Source
from speculoos.errors import BadInput


@dataclass(frozen=True)
class Layout:
    """A way to write a draft: what people call it, and `read(source, base, name)`."""

    title: str
    read: Callable[[Source, BaseOutline, str], ReadDraft]


READERS = {
    "speculoos": own,
    "medusa": medusa,
    "vllm-medusa": medusa,
    "eagle": eagle,
    "eagle3": eagle3,
    "modelopt-eagle3": eagle3,
    eagle3.TWICE: eagle3,
    "vllm-eagle3": eagle3,
    "speculators": eagle3,
    "model": causal,
}
LAYOUTS: dict[str, Layout] = {name: Layout(title, READERS[name].read) for name, title in TITLES.items()}


def find_layout(source: Source, name: str) -> str:
    """`name`, or the one detected where it is empty. Raises BadInput for an unknown one."""
    if name and name not in LAYOUTS:
        raise BadInput(f"--format {name}: expected one of {', '.join(LAYOUTS)}.")
    return name or detect(source.config, source.entries, source.name)
