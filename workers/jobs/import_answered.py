"""Job kind `import_answered`: imports a file of conversations with responses as training data."""

from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.methods.settings import setting
from tracking.tables import Base, Table
from workers.jobs.import_prompts import FIELDS_HELP, LIMIT_HELP, ImportFile
from workers.jobs.request import Namer, Rate
from workers.jobs.words import Operand, changed_options, option, pairs


class ImportAnswered(ImportFile):
    """`base_id` is the base model that generated the responses, or an equal one."""

    kind: ClassVar[str] = "import_answered"
    title: ClassVar[str] = "Import conversations"
    rate: ClassVar[Rate] = Rate(bytes=6.5e5, loading=3.0)

    path: str
    base_id: str
    original_name: str = ""
    limit: int | None = setting(None, LIMIT_HELP, 1, label="Maximum rows")
    delete_after: bool = False
    dataset_id: str = ""
    fields: dict[str, str] = setting({}, FIELDS_HELP)

    def inputs(self) -> list[tuple[type[Table], str]]:
        return [(Base, self.base_id)]

    def columns(self, session: Session) -> dict[str, Any]:
        return {"kind": "conversations", "config": self.to_json(), "base_id": self.base_id}

    def command(self, named: Namer) -> list[str]:
        words = ["data", "import", Operand(self.file_name), "--answered", *option("model", named(self.base_id))]
        return [*words, *changed_options(self, "limit"), *pairs("--field", self.fields)]
