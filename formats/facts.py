"""Facts for a model card that are not in the checkpoint's files, such as the base model's license. No torch."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from models.starter import STARTER_HUB_ID


@dataclass(frozen=True)
class CardFacts:
    """Facts about the base model. `location` is the hub id or folder that servers load; for the starter, the hub id of
    the model that the starter is a quantized copy of."""

    name: str
    location: str
    source: str = "folder"
    """hub, folder, gguf or starter."""
    revision: str = ""
    sha256: str = ""
    tokenizer_sha256: str = ""
    licence: str = ""
    checkpoint: str = ""
    """Name of the draft."""
    measured: Mapping[str, str] = field(default_factory=dict)
    """Measurements of the checkpoint, by label."""
    loads: Mapping[str, Any] = field(default_factory=dict)
    """Speedups on a server at several numbers of concurrent requests (`tracking.evaluations.measured_loads`)."""

    @property
    def model(self) -> str:
        """The base model in a command: the hub id, or a placeholder that the reader replaces with the folder."""
        return self.location if self.on_the_hub else "PATH_OF_THE_BASE"

    @property
    def on_the_hub(self) -> bool:
        """Whether `location` is a hub id."""
        return self.source in ("hub", "starter")

    @property
    def served_name(self) -> str:
        """The base model's name in requests to a server."""
        return self.model if self.on_the_hub else self.name

    @property
    def hub_id(self) -> str:
        """`owner/name` of a base model from the hub, or ""."""
        return self.location if self.on_the_hub and re.fullmatch(r"[\w.-]+/[\w.-]+", self.location) else ""

    @classmethod
    def of(
        cls,
        base: Any,
        checkpoint: str = "",
        measured: Mapping[str, str] | None = None,
        loads: Mapping[str, Any] | None = None,
    ) -> "CardFacts":
        """From a base model's row, the checkpoint's name, its measurements (`tracking.evaluations.measurements`) and
        loads."""
        return cls(
            name=base.name,
            location=STARTER_HUB_ID if base.source == "starter" else base.card.get("hub_id") or base.path,
            source=base.source,
            revision=base.card.get("revision") or "",
            sha256=base.weights_sha256,
            tokenizer_sha256=base.tokenizer_sha256,
            licence=base.card.get("licence") or "",
            checkpoint=checkpoint,
            measured=measured or {},
            loads=loads or {},
        )
