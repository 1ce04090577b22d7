"""What the checkpoint's files do not say and a model card should: where the base comes from and under which licence. No
torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.starter import HUB_ID


@dataclass(frozen=True)
class Facts:
    """About the base. `location` is a hub id or a folder, what servers are given as the model; of the starter the hub
    id of the model that it is a quantised copy of."""

    name: str
    location: str
    source: str = "folder"
    """hub, folder, gguf or starter."""
    revision: str = ""
    sha256: str = ""
    tokenizer_sha256: str = ""
    licence: str = ""
    checkpoint: str = ""
    """The checkpoint's own name."""
    measured: Mapping[str, str] = field(default_factory=dict)
    """What the workbench measured of the checkpoint, by what was asked."""

    @property
    def model(self) -> str:
        """What to write in a command: the hub id, else a word to be replaced by the folder."""
        return self.location if self.on_the_hub else "PATH_OF_THE_BASE"

    @property
    def on_the_hub(self) -> bool:
        """Whether `location` is a hub id."""
        return self.source in ("hub", "starter")

    @property
    def served_name(self) -> str:
        """What requests to a server call the base."""
        return self.model if self.on_the_hub else self.name

    @property
    def hub_id(self) -> str:
        """`owner/name` of a base from the hub, else empty."""
        return self.location if self.on_the_hub and re.fullmatch(r"[\w.-]+/[\w.-]+", self.location) else ""

    @classmethod
    def of(cls, base: Any, checkpoint: str = "", measured: Mapping[str, str] | None = None) -> "Facts":
        """Of a base's row, the name of the checkpoint and its measurements (`tracking.evaluations.measurements`)."""
        return cls(
            name=base.name,
            location=HUB_ID if base.source == "starter" else base.card.get("hub_id") or base.path,
            source=base.source,
            revision=base.card.get("revision") or "",
            sha256=base.weights_sha256,
            tokenizer_sha256=base.tokenizer_sha256,
            licence=base.card.get("licence") or "",
            checkpoint=checkpoint,
            measured=measured or {},
        )
