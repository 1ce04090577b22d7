"""What a job is asked to do: one frozen dataclass a kind, stored as JSON in the job's row. No torch here.

Pages, the command line and tests make these and hand them to `workers.ask.submit.submit`.
Rows named by an `…_id` exist before the job starts: `submit` makes the output rows in state `pending`.
"""

from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from speculoos.errors import BadInput

SHARD_ROWS = 5000
"""Prompts of a shard where nobody says otherwise; generations that are no larger stay one job."""

HUB = "hub:"
"""What begins the `path` of an import from the hub: `hub:OWNER/NAME[@REVISION][:PART]`."""


@dataclass(frozen=True)
class Request:
    """Base of all requests. `kind` names the job, `queue` where it runs."""

    kind: ClassVar[str]
    queue: ClassVar[str] = "gpu"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class FetchModel(Request):
    """Bring a base model here: `source` starter, hub, folder or gguf; `location` its hub id, folder or file."""

    kind: ClassVar[str] = "fetch_model"
    queue: ClassVar[str] = "io"
    source: str
    location: str
    base_id: str = ""  # output row, made by submit


@dataclass(frozen=True)
class ImportDraft(Request):
    """Make checkpoint `checkpoint_id` of the draft published at `location`: `source` folder, hub, or upload (a folder
    of uploaded files, which is ours to remove). `layout` is one of `formats.imports.names.TITLES`, found by itself
    when empty."""

    kind: ClassVar[str] = "import_draft"
    queue: ClassVar[str] = "io"
    source: str
    location: str
    base_id: str
    layout: str = ""
    checkpoint_id: str = ""


@dataclass(frozen=True)
class ImportPrompts(Request):
    """Read prompts into data set `dataset_id`. `path` is a file this home may read, a data set on the hub
    (`hub:OWNER/NAME`), or a set that comes with the workbench (`builtin:NAME`).

    `suite` (a key of `speculoos.suites.SUITES`): the file is that suite's, or without a `path` the hub's.
    """

    kind: ClassVar[str] = "import_prompts"
    queue: ClassVar[str] = "io"
    path: str
    original_name: str = ""
    limit: int | None = None
    delete_after: bool = False  # an upload is ours to remove
    suite: str = ""
    dataset_id: str = ""
    fields: dict[str, str] = field(default_factory=dict)  # corpus.mapping: what → the file's own name for it


@dataclass(frozen=True)
class ImportAnswered(Request):
    """Read a file of conversations that base `base_id` (or an equal one) answered into data set `dataset_id`, which
    can be trained on as it is. `path` is a file this home may read, or a data set on the hub (`hub:OWNER/NAME`)."""

    kind: ClassVar[str] = "import_answered"
    queue: ClassVar[str] = "io"
    path: str
    base_id: str
    original_name: str = ""
    limit: int | None = None
    delete_after: bool = False
    dataset_id: str = ""
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class GenerateData(Request):
    """Answer the prompts of `source_id` with base `base_id`, or with the endpoint named `endpoint` (several: `a,b`);
    with both the endpoint serves that base, so its token ids are asked for and checked.

    More than `shard_rows` prompts are divided into shards of so many.
    """

    kind: ClassVar[str] = "generate_data"
    source_id: str
    base_id: str = ""
    endpoint: str = ""
    endpoint_model: str = ""
    limit: int | None = None
    system_prompt: str = ""
    max_tokens: int = 256
    temperature: float = 0.0
    top_p: float = 1.0
    batch_size: int = 16
    seed: int = 0
    max_minutes: float | None = None  # stop by the clock and keep what is finished; such a one is not divided
    samples: int = 1  # answers to each prompt
    shard_rows: int | None = None  # None: SHARD_ROWS
    temperatures: tuple[float, ...] = ()  # in place of one; prompts and samples are spread over them
    replace_system: bool = False  # the system prompt takes the place of the prompts' own
    api: str = "chat"  # or completions, for which the base's template is rendered here
    drop_cut: bool = False
    unique: bool = False
    hidden_states_store: str = ""  # keep the base's last hidden states there, for trainings of Medusa heads
    dataset_id: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperatures", tuple(self.temperatures))  # stored rows have a list


@dataclass(frozen=True)
class GenerateShard(GenerateData):
    """Shard `key` of a generation: `limit` prompts from number `first` on, their answers number `first_sample`."""

    kind: ClassVar[str] = "generate_shard"
    key: str = ""
    first: int = 0
    first_sample: int = 0


@dataclass(frozen=True)
class Train(Request):
    """Train a draft with `methods.train_config(method, **settings)` on data set `dataset_id`, and on
    `more_dataset_ids` together with it."""

    kind: ClassVar[str] = "train"
    method: str
    base_id: str
    dataset_id: str
    settings: dict[str, Any] = field(default_factory=dict)
    recipe: str = ""
    checkpoint_id: str = ""
    more_dataset_ids: list[str] = field(default_factory=list)

    @property
    def dataset_ids(self) -> list[str]:
        """All of its data sets, each once."""
        return list(dict.fromkeys([self.dataset_id, *self.more_dataset_ids]))


@dataclass(frozen=True)
class Evaluate(Request):
    """Measure acceptance and speed on questions: a data set, or the built-in set when `dataset_id` is empty.

    With `endpoint` that server is asked, and `base_id` and `checkpoint_id` say what it serves, where that is known.
    """

    kind: ClassVar[str] = "evaluate"
    base_id: str = ""
    checkpoint_id: str = ""
    dataset_id: str = ""
    limit: int = 20
    max_tokens: int = 128
    drafting: dict[str, Any] = field(default_factory=dict)  # tree, depth, …: decoding.drafters options
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    dtype: str = ""  # of base and draft; "" as the settings say
    endpoint: str = ""
    endpoint_model: str = ""
    plain_model: str = ""  # what that endpoint calls the same base without a draft, for a speedup
    matrix_id: str = ""  # the matrix this is a cell of
    evaluation_id: str = ""


@dataclass(frozen=True)
class Matrix(Request):
    """Evaluations of every combination, each a job of its own: `models` are {"base_id", "checkpoint_id"}, `suites` ids
    of data sets ("" the built-in questions), `drafting` options of drafters ({} the checkpoint's own). What cannot be
    combined is left out (workers.ask.matrix)."""

    kind: ClassVar[str] = "matrix"
    models: list[dict[str, str]]
    suites: list[str] = field(default_factory=lambda: [""])
    temperatures: list[float] = field(default_factory=lambda: [0.0])
    drafting: list[dict[str, Any]] = field(default_factory=lambda: [{}])
    top_ps: list[float] = field(default_factory=lambda: [1.0])
    dtypes: list[str] = field(default_factory=lambda: [""])
    limit: int = 20
    max_tokens: int = 128
    seed: int = 0


@dataclass(frozen=True)
class PlanRequest(Request):
    """Predict the throughput of chains, trees and standalone drafts of `layers` for `batches` sequences at once, for a
    base with or without a checkpoint. `costs`: another machine's figures (`evaluation.costs`); empty: measured here.

    The prediction is the job's result, so it has no output row.
    """

    kind: ClassVar[str] = "plan"
    base_id: str
    checkpoint_id: str = ""
    dataset_id: str = ""
    limit: int = 6
    max_tokens: int = 48
    batches: list[int] = field(default_factory=lambda: [1, 2, 4, 8, 16])
    layers: list[int] = field(default_factory=lambda: [2, 4, 8])
    costs: dict[str, Any] = field(default_factory=dict)
    draft_hidden_size: int = 0  # width of the standalone drafts; 0: the base's


@dataclass(frozen=True)
class ReplayRequest(Request):
    """Judge checkpoint `checkpoint_id` on the recorded answers of data set `dataset_id`, at most `limit` of them; the
    first `show` are kept for the Playground."""

    kind: ClassVar[str] = "replay"
    base_id: str
    checkpoint_id: str
    dataset_id: str
    limit: int = 50
    show: int = 3
    drafting: dict[str, Any] = field(default_factory=dict)
    evaluation_id: str = ""


@dataclass(frozen=True)
class Tune(Request):
    """Find the tree with which checkpoint `checkpoint_id` gives the most tokens a second on the worker's device, from
    answers to `limit` questions; the finding is kept in the checkpoint's row, and with `keep` the tree in its files.

    The checkpoint is there already, so it has no output row.
    """

    kind: ClassVar[str] = "tune"
    base_id: str
    checkpoint_id: str
    dataset_id: str = ""
    limit: int = 6
    max_tokens: int = 48
    dtype: str = ""  # of base and draft; "" as the settings say
    keep: bool = True


@dataclass(frozen=True)
class Export(Request):
    """Write checkpoint `checkpoint_id` in the format `format` (a key of `formats.FORMATS`) and check it, for download.

    Its files are made again at will, so it has no output row.
    """

    kind: ClassVar[str] = "export"
    queue: ClassVar[str] = "io"
    checkpoint_id: str
    format: str


KINDS = (
    *(FetchModel, ImportDraft, ImportPrompts, ImportAnswered, GenerateData, GenerateShard),
    *(Train, Evaluate, Matrix, PlanRequest, ReplayRequest, Tune, Export),
)
REQUESTS: dict[str, type[Request]] = {request.kind: request for request in KINDS}


def queue_of(request: Request) -> str:
    """gpu or io; answering through an endpoint needs no device."""
    if isinstance(request, GenerateData | Evaluate) and request.endpoint:
        return "io"
    return request.queue


def from_json(kind: str, data: dict[str, Any]) -> Request:
    """The dataclass for a stored request. Raises BadInput for an unknown kind or field."""
    if kind not in REQUESTS:
        raise BadInput(f"Unknown kind of job {kind!r}; known are {', '.join(REQUESTS)}.")
    schema = REQUESTS[kind]
    names = {f.name for f in fields(schema)}
    if extra := set(data) - names:
        raise BadInput(f"{kind}: unknown field {sorted(extra)[0]!r}; known are {', '.join(sorted(names))}.")
    return schema(**data)
