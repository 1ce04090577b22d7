"""Records of export formats: names, servers and their versions, why a checkpoint is not supported, and the modules of
the writer and the reader. No torch: these modules are imported when they are needed.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.refusals import Refusal

ANY = "*"
"""Key for every method, including methods of third parties."""


@dataclass(frozen=True)
class Layout:
    """The layout of one method's drafts in a format."""

    servers: str
    """Server and versions: `vLLM 0.9 to 0.32`."""
    serve: Callable[[CheckpointFiles, CardFacts, str], str]
    """Takes the checkpoint, the facts and the folder's name; returns Markdown on how to serve the export."""
    refusals: tuple[Refusal, ...] = ()
    """Each returns "" if the server supports the checkpoint, else one sentence why not."""
    parts: str = ""
    """Name of the modules in `writers/` and `readers/` with functions named like the format; "" for the method's
    name."""


@dataclass(frozen=True)
class Format:
    """One format. `layouts` by method; `unsupported` gives the reason for other methods, `default_reason` for the
    rest."""

    name: str
    """In commands and files: `vllm`."""
    title: str
    """On pages: `vLLM`."""
    layouts: Mapping[str, Layout]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    default_reason: str = ""

    def layout(self, method: str) -> Layout | None:
        """The layout of drafts of `method`; None if the method is not supported."""
        return self.layouts.get(method) or self.layouts.get(ANY)

    def servers(self, method: str) -> str:
        """Server and versions for drafts of `method`, or for all methods if this one is not supported."""
        layout = self.layout(method)
        return layout.servers if layout else "; ".join(dict.fromkeys(x.servers for x in self.layouts.values()))

    def reason(self, checkpoint: CheckpointFiles) -> str:
        """Returns "" if the checkpoint can be written in this format, else one sentence why not."""
        layout = self.layout(checkpoint.method)
        if layout is None:
            return self.unsupported.get(checkpoint.method, self.default_reason)
        return next((reason for refusal in layout.refusals if (reason := refusal(checkpoint))), "")

    def load(self, part: str, method: str) -> Any:
        """The function of `part` for drafts of `method`:

        - `writer`: (CheckpointFiles, LoadedBase, CardFacts) → formats.plan.ExportPlan;
        - `reader`: (folder, CheckpointFiles) → the draft network as the server builds it (formats.readers).
        """
        layout = self.layout(method)
        assert layout is not None, f"{self.name} does not support {method}"
        return getattr(importlib.import_module(f"formats.{part}s.{layout.parts or method}"), self.name)
