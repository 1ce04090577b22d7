"""Job kind `fetch_model`: downloads or converts a base model, hashes it and writes its card."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from sqlalchemy.orm import Session

from models.methods.settings import setting
from speculoos.errors import Conflict
from tracking.names import STARTER
from tracking.tables import Base
from workers.jobs import sizes
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.words import Operand

NO_PATH = ("hub", "starter")
"""Sources whose location is not a path."""


class FetchModel(Request):
    """`location` is the hub id, the folder or the GGUF file."""

    kind: ClassVar[str] = "fetch_model"
    title: ClassVar[str] = "Fetch model"
    queue: ClassVar[Literal["gpu", "io"]] = "io"
    output: ClassVar = ("base_id", Base)
    rate: ClassVar[Rate] = Rate(bytes=2e7)

    source: str = setting(..., "hub, folder, gguf or starter; default: detected from the location.")
    location: str = setting(..., "Hub id, folder, GGUF file, or `starter`.")
    base_id: str = ""

    def paths(self) -> list[str]:
        return [self.location] if self.source not in NO_PATH else []

    def default_name(self, session: Session) -> str:
        location = self.location.rstrip("/")
        return location if self.source == "hub" else Path(location).name.removesuffix(".gguf")

    def output_name(self, name: str) -> str:
        """`starter` for the starter model and for no other: the name means the same weights on every machine."""
        name = name.strip() or (STARTER if self.source == STARTER else "")
        if (self.source == STARTER) != (name == STARTER):
            raise Conflict(f"The name {STARTER!r} is reserved for the starter model, which cannot have another name.")
        return name

    def columns(self, session: Session) -> dict[str, Any]:
        return {"source": self.source, "location": self.location}

    def need(self, session: Session) -> Need:
        """Size of files on this machine; the size of a download is not known yet."""
        return sizes.file_need(self.location)

    def command(self, named: Namer) -> list[str]:
        location = [Operand(self.location)] if self.location else []
        return ["models", "add", *location, "--source", self.source]
