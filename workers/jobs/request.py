"""The base of all job kinds: a frozen pydantic model. No torch.

A kind is one class in a module of its own, registered in `workers.jobs.requests`. Its fields carry default, bounds,
choices, label and help once (`models.methods.settings.setting`); commands, forms, checks, JSON in the job's row and the
“same as command” line are made from them. Its methods say what it reads, which row it fills, what it takes and which
function does the work.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy.orm import Session

from models.methods.settings import Setting, settings_error, settings_of
from speculoos.settings import Settings
from tracking.tables import Table
from workers.jobs.words import changed_options

Namer = Callable[[str], str]
"""The name of a row for its id; the id itself where the name is not known."""


@dataclass(frozen=True)
class FixedWork:
    """Bytes of weights that a training reads however long it is: by its tuning, and for its sample generations by the
    base and by the draft."""

    tuning: float = 0.0
    base: float = 0.0
    draft: float = 0.0


@dataclass(frozen=True)
class Need:
    """What a job takes, except for time: `work` in operations, bytes of weights, bytes of files or tokens of an
    endpoint (`workers.jobs.pace` knows how much of it a second does), bytes on disk and in memory."""

    work: float = 0.0
    disk: float = 0.0
    memory: float = 2e8
    minutes: float | None = None
    """A time limit."""
    steps: int = 0
    rhythm: str = ""
    """Size of a training's steps and when it is measured, for people."""
    fixed: FixedWork = FixedWork()
    repeated: int = 1
    """How many times the work is done at most."""


@dataclass(frozen=True)
class Rate:
    """How fast work of a kind is done where no past job says so. `share`: part of what the machine's probe reaches, in
    `unit`; `bytes`: bytes of files per second; `loading`: seconds to load torch or a tokenizer."""

    share: float = 0.0
    unit: Literal["multiplies", "reads", "learns"] = "multiplies"
    bytes: float = 0.0
    loading: float = 0.0


class Request(BaseModel):
    """One job, as it is stored in the job's row. Raises BadInput, with the field's label, for an invalid value.

    Fields can be passed by position, in the order in which they are declared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str]
    """Name in the job's row, in commands and in `workers/child/work/`."""
    title: ClassVar[str]
    """Name on pages."""
    verb: ClassVar[str] = ""
    """How the job's name begins; by default the first word of `kind`."""
    queue: ClassVar[Literal["gpu", "io"]] = "gpu"
    output: ClassVar[tuple[str, type[Table]] | None] = None
    """The field with the id of the row that the job fills, and its table."""
    output_in_base: ClassVar[bool] = False
    """Whether the output's name has to be unique only among those of the same base."""
    rate: ClassVar[Rate] = Rate()
    work: ClassVar[str] = ""
    """Module whose `run(request, context)` does the work; by default `workers.child.work.KIND`."""

    def __init__(self, *values: Any, **fields: Any):
        try:
            super().__init__(**dict(zip(type(self).model_fields, values, strict=False)), **fields)
        except ValidationError as error:
            raise settings_error(error, type(self), f"{self.kind}: ", by_label=True) from None

    @classmethod
    def options(cls) -> dict[str, Setting]:
        """Its fields that have a help text, by name: those that a user sets."""
        return {each.name: each for each in settings_of(cls) if each.help}

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def changed(self, **fields: Any) -> "Request":
        """A copy with other values, checked like a new one."""
        return type(self)(**{**self.model_dump(), **fields})

    @property
    def runs_on(self) -> str:
        """The queue of this request."""
        return self.queue

    def inputs(self) -> list[tuple[type[Table], str]]:
        """The rows it reads, as (table, id)."""
        return []

    def paths(self) -> list[str]:
        """Files and folders it names itself, without a row."""
        return []

    def check_settings(self, settings: Settings) -> None:
        """Checks that need the settings or a server, once when it is submitted. Raises BadInput or Unavailable."""

    def check_options(self) -> None:
        """Checks of several fields together. Raises BadInput."""

    def check(self, session: Session) -> None:
        """Checks that need its rows; every input exists. Raises BadInput, Conflict or Unsupported."""

    def default_name(self, session: Session) -> str:
        """A name for the output, or for the job where there is none, made from the inputs."""
        return self.kind.replace("_", " ")

    def columns(self, session: Session) -> dict[str, Any]:
        """Columns of the new output row besides name and state."""
        return {}

    def need(self, session: Session) -> Need:
        """What it takes. Raises NotFound where one of its rows is gone."""
        return Need()

    def cells(self, session: Session) -> "Sequence[Request] | None":
        """The jobs that it consists of, where it does no work itself: its estimate is their sum."""
        return None

    def command(self, named: Namer) -> list[str]:
        """The words of the command that submits it, after `speculoos`."""
        return [self.kind.replace("_", "-"), *changed_options(self, *self.options())]

    def run(self, context: Any) -> Any:
        """Do the work, in a worker's child process. The module is imported here, so that pages stay free of torch."""
        return importlib.import_module(self.work or f"workers.child.work.{self.kind}").run(self, context)


def without_output(request: Request) -> Request:
    """The request before it had an output row, which clones and forms start from."""
    return request.changed(**{request.output[0]: ""}) if request.output else request


def named_ids(names: Mapping[str, str] | None) -> Namer:
    """Ids to names; an id without a name stays as it is."""
    known = dict(names or {})
    return lambda row_id: known.get(row_id, row_id)
