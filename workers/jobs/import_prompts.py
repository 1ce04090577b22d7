"""Job kind `import_prompts`: imports a file of prompts or a benchmark suite as a data set."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from sqlalchemy.orm import Session

from models.methods.settings import setting
from tracking.tables import Dataset
from workers.jobs import sizes
from workers.jobs.request import Namer, Need, Rate, Request
from workers.jobs.words import Operand, changed_options, pairs

HUB = "hub:"
"""Prefix of the `path` of an import from the Hub: `hub:OWNER/NAME[@REVISION][:PART]`."""
BUILT_IN_PREFIX = "builtin:"
"""Prefix of the `path` of an included data set: `builtin:NAME`."""
LIMIT_HELP = "Import only the first rows."
FIELDS_HELP = "Column of a field, as prompt=COLUMN, answer=COLUMN or messages=COLUMN; may be repeated."


class ImportFile(Request):
    """Base class of both imports. `path` is a file of this home, a data set on the Hub (`hub:…`), or an included one
    (`builtin:…`)."""

    queue: ClassVar[Literal["gpu", "io"]] = "io"
    output: ClassVar = ("dataset_id", Dataset)

    def paths(self) -> list[str]:
        return [self.path] if self.path else []  # a suite from the Hub has none

    @property
    def file_name(self) -> str:
        """Name for messages: the original name of an upload, or the Hub id; "" for a suite from the Hub."""
        return self.path if self.path.startswith(HUB) else self.original_name or self.path

    def default_name(self, session: Session) -> str:
        if self.path.startswith(HUB):
            repo, _, part = self.original_name.partition(":")
            return "-".join(filter(None, [repo.partition("@")[0].rpartition("/")[2], *part.split("/")]))
        return Path(self.original_name or self.path).stem

    def need(self, session: Session) -> Need:
        return sizes.file_need(self.path)


class ImportPrompts(ImportFile):
    """With `suite` (a key of `speculoos.suites.SUITES`) the file is that suite's; without `path` it is downloaded."""

    kind: ClassVar[str] = "import_prompts"
    title: ClassVar[str] = "Import prompts"
    rate: ClassVar[Rate] = Rate(bytes=4e6)

    path: str
    original_name: str = ""
    limit: int | None = setting(None, LIMIT_HELP, 1, label="Maximum rows")
    delete_after: bool = False  # an upload
    suite: str = setting(
        "",
        "Import as this suite: mt_bench, humaneval, gsm8k or spec_bench. Without a file it is downloaded from the Hub.",
    )
    dataset_id: str = ""
    fields: dict[str, str] = setting({}, FIELDS_HELP)

    def default_name(self, session: Session) -> str:
        return self.suite or super().default_name(session)

    def columns(self, session: Session) -> dict[str, Any]:
        return {"kind": "prompts", "config": self.to_json()}

    def command(self, named: Namer) -> list[str]:
        if self.path.startswith(BUILT_IN_PREFIX):
            return ["data", "add-builtin", self.path.removeprefix(BUILT_IN_PREFIX)]
        file = [Operand(self.file_name)] if self.file_name else []
        return ["data", "import", *file, *changed_options(self, "suite", "limit"), *pairs("--field", self.fields)]
