"""What is known of a format before anything is written: names, words, servers and their versions, what cannot go there
and why, and where its writer, table and reader are. No torch: these are named as `module:name`, imported when needed.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from formats.checkpoint import Checkpoint

ANY = "*"
"""Stands for every method, those of strangers too."""


def takes_all(_checkpoint: Checkpoint) -> str:
    """The refusal of a layout that has none."""
    return ""


@dataclass(frozen=True)
class Layout:
    """How a format holds the drafts of one method."""

    servers: str
    """Which server, in which versions: `vLLM 0.9 to 0.32`."""
    writer: str
    """(Checkpoint, Base, Facts) → formats.plan.Plan."""
    table: str
    """Checkpoint → formats.table.Table: what must be in the folder."""
    reader: str
    """(folder, Checkpoint) → the draft network as the server builds it; see formats.readers."""
    serve: str
    """(Checkpoint, Facts, folder's name) → how to serve it, Markdown."""
    refusal: Callable[[Checkpoint], str] = takes_all
    """Empty where a checkpoint of this shape can go there, else one sentence why not."""


@dataclass(frozen=True)
class Format:
    """One format. `layouts` by method; `lacking` says for other methods why there is none, `otherwise` for the rest."""

    name: str
    """In commands and files: `vllm`."""
    title: str
    """On pages: `vLLM`."""
    layouts: Mapping[str, Layout]
    lacking: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""

    def layout(self, method: str) -> Layout | None:
        """How drafts of `method` are held; None where they are not."""
        return self.layouts.get(method) or self.layouts.get(ANY)

    def servers(self, method: str) -> str:
        """Server and versions for drafts of `method`; of all methods where it takes none of these."""
        layout = self.layout(method)
        return layout.servers if layout else "; ".join(dict.fromkeys(x.servers for x in self.layouts.values()))

    def reason(self, checkpoint: Checkpoint) -> str:
        """Empty where the checkpoint can be written in this format, else one sentence why not."""
        layout = self.layout(checkpoint.method)
        return layout.refusal(checkpoint) if layout else self.lacking.get(checkpoint.method, self.otherwise)

    def load(self, part: str, method: str) -> Any:
        """What `writer`, `table`, `reader` or `serve` of a method's layout names."""
        layout = self.layout(method)
        assert layout is not None, f"{self.name} holds no {method}"
        module, _, name = getattr(layout, part).partition(":")
        return getattr(importlib.import_module(module), name)
