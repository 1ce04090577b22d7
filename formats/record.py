"""What is known of a format before anything is written: names, words, servers and their versions, what cannot go there
and why, and where its writer, table and reader are. No torch: these are imported when they are needed.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import Facts
from formats.refusals import Refusal

ANY = "*"
"""Stands for every method, those of strangers too."""


@dataclass(frozen=True)
class Layout:
    """How a format holds the drafts of one method."""

    servers: str
    """Which server, in which versions: `vLLM 0.9 to 0.32`."""
    serve: Callable[[CheckpointFiles, Facts, str], str]
    """With the folder's name: how to serve it, Markdown."""
    refusals: tuple[Refusal, ...] = ()
    """Each empty where a checkpoint of this shape can go there, else one sentence why not."""
    parts: str = ""
    """Module in `writers/`, `tables/` and `readers/` whose functions of the format's name are its parts; "" for the
    one called like the method."""


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

    def reason(self, checkpoint: CheckpointFiles) -> str:
        """Empty where the checkpoint can be written in this format, else one sentence why not."""
        layout = self.layout(checkpoint.method)
        if layout is None:
            return self.lacking.get(checkpoint.method, self.otherwise)
        return next((said for refusal in layout.refusals if (said := refusal(checkpoint))), "")

    def load(self, part: str, method: str) -> Any:
        """The function of `part` for drafts of `method`:

        - `writer`: (CheckpointFiles, LoadedBase, Facts) → formats.plan.ExportPlan;
        - `table`: CheckpointFiles → formats.table.TensorTable, the tensors that the folder must hold;
        - `reader`: (folder, CheckpointFiles) → the draft network as the server builds it (formats.readers).
        """
        layout = self.layout(method)
        assert layout is not None, f"{self.name} holds no {method}"
        return getattr(importlib.import_module(f"formats.{part}s.{layout.parts or method}"), self.name)
