"""Built-in prompt sets, which the Data page offers to add. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput
from speculoos.settings import PROJECT_ROOT
from workers.jobs.import_prompts import BUILT_IN_PREFIX as PREFIX
from workers.jobs.import_prompts import ImportPrompts

PROMPTS, QUESTIONS = "quickstart-prompts", "built-in-questions"


@dataclass(frozen=True)
class BuiltIn:
    """A file of the repository that can be added as a data set."""

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
            "Short questions, letters, stories, code and sums, as in the quickstart: a model generates the responses "
            "within minutes, enough to train a first draft.",
            PROJECT_ROOT / "corpus" / "quickstart_prompts.jsonl",
        ),
        BuiltIn(
            QUESTIONS,
            "Questions",
            "Eight kinds of tasks, some with a second turn: the default for evaluations, and an example for your own. "
            "Do not train a draft on questions that you evaluate it on.",
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
    name = config.get("original_name", "").removesuffix(".jsonl")
    complete = name in BUILT_IN and config.get("limit") is None
    return name if complete and _is_path_of(BUILT_IN[name], config.get("path", "")) else ""


def _is_path_of(built_in: BuiltIn, path: str) -> bool:
    """Whether an import's path refers to the set: by name, or in rows of earlier versions by the file in any clone."""
    return path == PREFIX + built_in.name or path.endswith(f"/{built_in.file.parent.name}/{built_in.file.name}")


@cache
def _rows(file: Path) -> int:
    with open(file, "rb") as handle:
        return sum(1 for line in handle if line.strip())
