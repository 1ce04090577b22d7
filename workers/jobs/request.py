"""The base of all job kinds: a frozen pydantic model. No torch.

A kind is one class in its own module, registered in `workers.jobs.requests`. Its fields define default, bounds,
choices, label and help (`models.methods.settings.setting`); commands, forms, checks, the JSON in the job's row and the
equivalent command are generated from them. Its methods define the inputs, the output row, the estimate and the function
that does the work.
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
"""Maps the id of a row to its name, or to the id itself if the name is unknown."""


@dataclass(frozen=True)
class FixedWork:
    """Bytes of weights that a training reads regardless of its length: in the tuning, and in sample generations by the
    base and by the draft."""

    tuning: float = 0.0
    base: float = 0.0
    draft: float = 0.0


@dataclass(frozen=True)
class Need:
    """Resources of a job: `work` in operations, bytes of weights, bytes of files or tokens of an endpoint
    (`workers.jobs.pace` gives the work per second), `disk` and `memory` in bytes."""

    work: float = 0.0
    disk: float = 0.0
    memory: float = 2e8
    minutes: float | None = None
    """Time limit."""
    steps: int = 0
    rhythm: str = ""
    """Size of a training's steps and its evaluation interval, in words."""
    fixed: FixedWork = FixedWork()
    repeated: int = 1
    """Maximum number of times that the work is done."""


@dataclass(frozen=True)
class Rate:
    """Speed of a kind without past jobs. `share`: fraction of the speed that the machine's probe reached, in `unit`;
    `bytes`: bytes of files per second; `loading`: seconds to load torch or a tokenizer."""

    share: float = 0.0
    unit: Literal["multiplies", "reads", "learns"] = "multiplies"
    bytes: float = 0.0
    loading: float = 0.0


class Request(BaseModel):
    """The request of a job, stored in its row. Raises BadInput, with the field's label, for an invalid value.

    Fields can be passed by position, in the order in which they are declared.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str]
    """Name in the job's row, in commands and in `workers/child/work/`."""
    title: ClassVar[str]
    """Name on pages."""
    verb: ClassVar[str] = ""
    """First word of the job's name; default: the first word of `kind`."""
    queue: ClassVar[Literal["gpu", "io"]] = "gpu"
    output: ClassVar[tuple[str, type[Table]] | None] = None
    """The field with the id of the output row, and its table."""
    output_in_base: ClassVar[bool] = False
    """Whether the output's name must be unique only within its base."""
    rate: ClassVar[Rate] = Rate()
    retired: ClassVar[tuple[str, ...]] = ()
    """Fields of earlier versions, ignored in stored requests."""
    work: ClassVar[str] = ""
    """Module whose `run(request, context)` does the work; default: `workers.child.work.KIND`."""

    def __init__(self, *values: Any, **fields: Any):
        try:
            super().__init__(**dict(zip(type(self).model_fields, values, strict=False)), **fields)
        except ValidationError as error:
            raise settings_error(error, type(self), f"{self.kind}: ", by_label=True) from None

    @classmethod
    def options(cls) -> dict[str, Setting]:
        """Fields with a help text, by name: those that users set."""
        return {each.name: each for each in settings_of(cls) if each.help}

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def changed(self, **fields: Any) -> "Request":
        """A validated copy with other values."""
        return type(self)(**{**self.model_dump(), **fields})

    @classmethod
    def from_row(cls, data: Mapping[str, Any]) -> "Request":
        """A stored request. Numbers outside of the bounds are kept, as earlier versions accepted some of them; anything
        else is validated. Raises BadInput."""
        options = cls.options()
        data = {key: value for key, value in data.items() if key not in cls.retired}
        outside = {key: value for key, value in data.items() if key in options and not options[key].contains(value)}
        inside = cls(**{key: value for key, value in data.items() if key not in outside})
        return inside.model_copy(update=outside)

    @property
    def runs_on(self) -> str:
        """The queue of this request."""
        return self.queue

    def inputs(self) -> list[tuple[type[Table], str]]:
        """The rows it reads, as (table, id)."""
        return []

    def paths(self) -> list[str]:
        """Files and folders in the request that have no row."""
        return []

    def check_settings(self, settings: Settings) -> None:
        """Checks that need the settings or a server, once at submission. Raises BadInput or Unavailable."""

    def check_options(self) -> None:
        """Checks of combinations of fields. Raises BadInput."""

    def check(self, session: Session) -> None:
        """Checks that need the input rows, which exist. Raises BadInput, Conflict or Unsupported."""

    def output_name(self, name: str) -> str:
        """The name that the output must have, from the requested `name`; "" if any free name will do. Raises Conflict
        for a name that this request cannot have."""
        return name.strip()

    def default_name(self, session: Session) -> str:
        """Default name of the output (of the job without an output), from the inputs."""
        return self.kind.replace("_", " ")

    def columns(self, session: Session) -> dict[str, Any]:
        """Columns of the new output row besides name and state."""
        return {}

    def need(self, session: Session) -> Need:
        """Resources of the job. Raises NotFound if one of its rows was deleted."""
        return Need()

    def cells(self, session: Session) -> "Sequence[Request] | None":
        """The jobs of a kind that only submits others, whose estimates are summed; None for other kinds."""
        return None

    def command(self, named: Namer) -> list[str]:
        """Arguments of the equivalent command, after `speculoos`."""
        return [self.kind.replace("_", "-"), *changed_options(self, *self.options())]

    def run(self, context: Any) -> Any:
        """Do the work, in a worker's child process. Imports the module lazily, so that pages do not import torch."""
        return importlib.import_module(self.work or f"workers.child.work.{self.kind}").run(self, context)


def without_output(request: Request) -> Request:
    """The request without its output id, as a template for clones and forms."""
    return request.changed(**{request.output[0]: ""}) if request.output else request


def named_ids(names: Mapping[str, str] | None) -> Namer:
    """Maps ids to names; an id without a name stays as it is."""
    by_id = dict(names or {})
    return lambda row_id: by_id.get(row_id, row_id)
