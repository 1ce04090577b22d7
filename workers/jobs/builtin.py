"""Built-in prompt sets, which the Data page offers to add. No torch."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.errors import BadInput
from speculoos.settings import PROJECT_ROOT
from tracking.tables import Dataset
from workers.jobs.transfers import BUILT_IN_PREFIX as PREFIX
from workers.jobs.transfers import ImportPrompts

PROMPTS, QUESTIONS = "quickstart-prompts", "built-in-questions"


class BuiltIn(NamedTuple):
    """A file of the repository that can be added as a dataset."""

    name: str
    title: str
    lead: str
    file: Path

    @property
    def rows(self) -> int:
        return _rows(self.file)

    def request(self) -> ImportPrompts:
        """The request that imports it; any machine can run it."""
        return ImportPrompts(path=PREFIX + self.name, original_name=f"{self.name}.jsonl")


BUILT_IN = {
    built_in.name: built_in
    for built_in in (
        BuiltIn(
            PROMPTS,
            "Prompts",
            "Short questions, letters, stories, code and sums: enough to train a first draft within minutes.",
            PROJECT_ROOT / "corpus" / "quickstart_prompts.jsonl",
        ),
        BuiltIn(
            QUESTIONS,
            "Questions",
            "Eight kinds of tasks, some with two turns: the default for evaluations. Do not train on them.",
            PROJECT_ROOT / "evaluation" / "questions.jsonl",
        ),
    )
}


def find_built_in(name: str) -> BuiltIn:
    """The set with this name. Raises BadInput with the known names."""
    if name not in BUILT_IN:
        raise BadInput(f"There is no built-in set {name!r}; the sets are {' and '.join(BUILT_IN)}.")
    return BUILT_IN[name]


def built_in_of(config: Mapping[str, Any] | None) -> str:
    """Name of the built-in set that an import with this config read completely; "" for other files."""
    config = config or {}
    path, built_in = config.get("path", ""), BUILT_IN.get(config.get("original_name", "").removesuffix(".jsonl"))
    if built_in is None or config.get("limit") is not None:
        return ""
    in_clone = f"/{built_in.file.parent.name}/{built_in.file.name}"  # rows of earlier versions have the file's path
    return built_in.name if path == PREFIX + built_in.name or path.endswith(in_clone) else ""


def added_sets(session: Session) -> dict[str, str]:
    """{name: dataset's id} of the built-in sets that were added, under any name, and did not fail."""
    columns = select(Dataset.id, Dataset.config).where(Dataset.kind == "prompts", Dataset.state != "failed")
    newest_first = session.execute(columns.order_by(Dataset.created_at.desc()))
    return {name: row_id for row_id, config in newest_first if (name := built_in_of(config))}


@cache
def _rows(file: Path) -> int:
    with open(file, "rb") as handle:
        return sum(1 for line in handle if line.strip())
