"""The base of all job kinds: a frozen pydantic model. No torch.

A kind is one class in its own module, registered in `workers.jobs.requests`. Its fields define default, bounds,
choices, label and help (`models.methods.settings.setting`); commands, forms, checks, the JSON in the job's row and the
equivalent command are generated from them. Its methods define the inputs, the output row, the estimate and the function
that does the work.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy.orm import Session

from models.methods.settings import Setting, settings_error, settings_of
from speculoos.files import total_bytes
from speculoos.settings import Settings
from tracking.tables import Base, Checkpoint, Dataset, Table
from workers.jobs.arguments import changed_options, joined, option
from workers.jobs.training_memory import Forecast

INPUTS: dict[str, type[Table]] = {"base_id": Base, "checkpoint_id": Checkpoint, "dataset_id": Dataset}
Namer = Callable[[str], str]  # maps the id of a row to its name, or to the id itself if the name is unknown


@dataclass(frozen=True)
class Need:
    """Resources of a job: `work` in operations, bytes of weights, bytes of files or tokens of an endpoint
    (`workers.jobs.estimates` has the work per second), `disk` and `memory` in bytes."""

    work: float = 0.0
    disk: float = 0.0
    memory: float = 2e8
    minutes: float | None = None  # time limit
    steps: int = 0
    step_note: str = ""  # of a training: tokens per step and evaluation interval
    fixed_bytes: float = 0.0  # bytes of weights that a training reads regardless of its length, in its tuning
    training_memory: Forecast | None = None  # `memory` is that of a training on a CPU


@dataclass(frozen=True)
class Rate:
    """Speed of a kind without past jobs. `share`: fraction of the speed that the machine's probe reached, in `unit` per
    second; `bytes`: bytes of files per second; `loading`: seconds to load torch or a tokenizer."""

    share: float = 0.0
    unit: Literal["inference_flops", "bytes_read", "training_flops"] = "inference_flops"
    bytes: float = 0.0
    loading: float = 0.0


class Request(BaseModel):
    """The request of a job, stored in its row. Fields can be passed by position. Raises BadInput by label."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    kind: ClassVar[str]  # name in the job's row, in commands and in `workers/child/work/`
    title: ClassVar[str]  # name on pages
    verb: ClassVar[str] = ""  # first word of the job's name; default: the first word of `kind`
    queue: ClassVar[Literal["gpu", "io"]] = "gpu"
    output: ClassVar[tuple[str, type[Table]] | None] = None  # the field with the id of the output row, and its table
    output_in_base: ClassVar[bool] = False  # whether the output's name must be unique only within its base
    rate: ClassVar[Rate] = Rate()
    retired: ClassVar[tuple[str, ...]] = ()
    """Fields of earlier versions, ignored in stored requests."""
    work: ClassVar[str] = ""
    """`module:function` that does the work, called with (request, context); default: `workers.child.work.KIND:run`."""

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
        """The queue of this request; endpoints need no device."""
        return "io" if getattr(self, "endpoint", "") else self.queue

    def inputs(self) -> list[tuple[type[Table], str]]:
        """The rows it reads, as (table, id): by default those of `base_id` (optional with an endpoint), `checkpoint_id`
        and `dataset_id`."""
        named = [(field, table) for field, table in INPUTS.items() if field in type(self).model_fields]
        rows = [(table, getattr(self, field)) for field, table in named if (field, table) != self.output]
        endpoint = getattr(self, "endpoint", "")
        return [(table, row_id) for table, row_id in rows if row_id or (table is Base and not endpoint)]

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
        """The name of the output for the requested `name`; "" if any free name will do. Raises Conflict."""
        return name.strip()

    def default_name(self, session: Session) -> str:
        """Default name of the output (of the job without an output), from the inputs."""
        return self.kind.replace("_", " ")

    def columns(self, session: Session) -> dict[str, Any]:
        """Columns of the new output row besides name and state."""
        return {}

    def need(self, session: Session) -> Need:
        """Resources of the job: by default those to read its `paths`. Raises NotFound for a deleted row."""
        size = sum(total_bytes(Path(path)) for path in self.paths())
        return Need(work=size, disk=size)

    def shard_requests(self, session: Session) -> "Sequence[Request] | None":
        """The shards of a kind that does no work of its own; their estimates are summed. None for other kinds."""
        return None

    def command(self, named: Namer) -> list[str]:
        """Arguments of the equivalent command, after `speculoos`."""
        return [self.kind.replace("_", "-"), *changed_options(self, *self.options())]

    def run(self, context: Any) -> Any:
        """Do the work, in a worker's child process. Imports the module lazily, so that pages do not import torch."""
        module, _, function = (self.work or f"workers.child.work.{self.kind}").partition(":")
        return getattr(importlib.import_module(module), function or "run")(self, context)


def command_for(
    request: Request, names: Mapping[str, str] | None = None, name: str = "", flags: Iterable[str] = ()
) -> str:
    """The shell command for `request`. `names` maps row ids to names; `name` is the output's; `flags` come last."""
    by_id = dict(names or {})
    return joined([*request.command(lambda row_id: by_id.get(row_id, row_id)), *option("name", name), *flags])
