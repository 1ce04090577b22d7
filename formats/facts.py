"""What the checkpoint's files do not say and a model card should: where the base comes from and under which licence. No
torch."""

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Facts:
    """About the base. `location` is a hub id or a folder, what servers are given as the model."""

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

    @property
    def model(self) -> str:
        """What to write in a command: the hub id, else a word to be replaced by the folder."""
        return self.location if self.source == "hub" else "PATH_OF_THE_BASE"

    @property
    def hub_id(self) -> str:
        """`owner/name` of a base from the hub, else empty."""
        return self.location if self.source == "hub" and re.fullmatch(r"[\w.-]+/[\w.-]+", self.location) else ""

    @classmethod
    def of(cls, base: Any, checkpoint: str = "") -> "Facts":
        """Of a base's row, and the name of the checkpoint."""
        return cls(
            name=base.name,
            location=base.card.get("hub_id") or base.path,
            source=base.source,
            revision=base.card.get("revision") or "",
            sha256=base.weights_sha256,
            tokenizer_sha256=base.tokenizer_sha256,
            licence=base.card.get("licence") or "",
            checkpoint=checkpoint,
        )
