"""Job kind `export`: writes a checkpoint in a server's format for download, and validates it."""

from typing import ClassVar, Literal

from sqlalchemy.orm import Session

from formats import find_format
from models.methods.settings import setting
from tracking import queries
from tracking.tables import Checkpoint, Table
from workers.jobs import sizes
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.words import Operand


class Export(Request):
    """`format` is a key of `formats.FORMATS`. There is no output row: an export can be repeated at any time."""

    kind: ClassVar[str] = "export"
    title: ClassVar[str] = "Export"
    queue: ClassVar[Literal["gpu", "io"]] = "io"
    rate: ClassVar[Rate] = Rate(bytes=3e7, loading=2.5)

    checkpoint_id: str
    format: str = setting(..., "own, or a server's format: see --list. A zip if --out ends with .zip.")

    def inputs(self) -> list[tuple[type[Table], str]]:
        return [(Checkpoint, self.checkpoint_id)]

    def default_name(self, session: Session) -> str:
        return f"{queries.find_checkpoint(session, self.checkpoint_id).name} for {find_format(self.format).title}"

    def need(self, session: Session) -> Need:
        """The checkpoint's files are read, written and read again."""
        size = sizes.folder_bytes(sizes.found(session, Checkpoint, self.checkpoint_id).path)
        return Need(size, 2 * size, 3e8)

    def command(self, named: Namer) -> list[str]:
        return ["export", Operand(named(self.checkpoint_id)), "--format", self.format]
