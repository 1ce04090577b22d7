"""Job kind `import_draft`: imports a published draft as a checkpoint."""

from pathlib import PurePath
from typing import Any, ClassVar, Literal

from sqlalchemy.orm import Session

from models.methods.settings import setting
from tracking import queries
from tracking.tables import Base, Checkpoint, Table
from workers.jobs import sizes
from workers.jobs.fetch_model import NO_PATH
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.words import Operand, option


class ImportDraft(Request):
    """`source` is folder, hub, or upload (a folder of uploaded files, which the job removes)."""

    kind: ClassVar[str] = "import_draft"
    title: ClassVar[str] = "Import draft"
    queue: ClassVar[Literal["gpu", "io"]] = "io"
    output: ClassVar = ("checkpoint_id", Checkpoint)
    output_in_base: ClassVar[bool] = True
    rate: ClassVar[Rate] = Rate(bytes=3e7, loading=3.0)

    source: str = setting(..., "folder or hub; default: detected from the location.")
    location: str = setting(..., "Folder of a published draft, or its Hub id.")
    base_id: str
    layout: str = setting("", "Format of the draft, such as vllm-eagle3; default: detected.", label="Format")
    checkpoint_id: str = ""

    def inputs(self) -> list[tuple[type[Table], str]]:
        return [(Base, self.base_id)]

    def paths(self) -> list[str]:
        return [self.location] if self.source not in NO_PATH else []

    def default_name(self, session: Session) -> str:
        return self.location.rstrip("/").rpartition("/")[2].partition("@")[0]

    def columns(self, session: Session) -> dict[str, Any]:
        base = queries.find_base(session, self.base_id)
        return {"method": "", "config": self.to_json(), "base_id": base.id, "base_sha256": base.weights_sha256}

    def need(self, session: Session) -> Need:
        return sizes.file_need(self.location)

    def command(self, named: Namer) -> list[str]:
        uploaded = self.source == "upload"  # the user has the folder under its own name
        location = Operand(f"./{PurePath(self.location).name}" if uploaded else self.location)
        words = ["models", "add-draft", location, *option("model", named(self.base_id))]
        return [*words, "--source", "folder" if uploaded else self.source, *option("format", self.layout)]
