"""Job kinds that read or write files: `fetch_model`, `quantize`, `import_draft`, `import_prompts`, `import_answered`,
`export`."""

from pathlib import Path, PurePath
from typing import Any, ClassVar, Literal

from sqlalchemy.orm import Session

from formats import find_format
from models.methods.settings import setting
from speculoos.errors import Conflict, Unsupported
from speculoos.files import total_bytes
from tracking import queries
from tracking.names import STARTER
from tracking.tables import Base, Checkpoint, Dataset
from workers.jobs import sizes
from workers.jobs.arguments import Operand, changed_options, option, pairs
from workers.jobs.request import Namer, Need, Rate, Request

HUB = "hub:"  # prefix of the `path` of an import from the Hub: `hub:OWNER/NAME[@REVISION][:PART]`
BUILT_IN_PREFIX = "builtin:"  # prefix of the `path` of an included dataset: `builtin:NAME`
LIMIT_HELP = "Import only the first rows."
FIELDS_HELP = "Column of a field, as prompt=COLUMN, answer=COLUMN or messages=COLUMN; may be repeated."
NO_PATH = ("hub", "starter")  # sources whose location is not a path


class FileRequest(Request):
    """Base class of these kinds: they need no device. `location` may be a path, depending on `source`."""

    queue: ClassVar[Literal["gpu", "io"]] = "io"

    def paths(self) -> list[str]:
        return [self.location] if getattr(self, "source", "hub") not in NO_PATH else []


class FetchModel(FileRequest):
    """`location` is the hub id, the folder or the GGUF file."""

    kind: ClassVar[str] = "fetch_model"
    title: ClassVar[str] = "Add model"
    verb: ClassVar[str] = "Add"
    work: ClassVar[str] = "workers.child.work.models:run_fetch_model"
    output: ClassVar = ("base_id", Base)
    rate: ClassVar[Rate] = Rate(bytes=2e7)

    source: str = setting(..., "hub, folder, gguf or starter; default: detected from the location.")
    location: str = setting(..., "Hub id, folder, GGUF file, or `starter`.")
    base_id: str = ""

    def default_name(self, session: Session) -> str:
        location = self.location.rstrip("/")
        return location if self.source == "hub" else Path(location).name.removesuffix(".gguf")

    def output_name(self, name: str) -> str:
        """`starter` for the starter model and for no other: the name means the same weights on every machine."""
        name = name.strip() or (STARTER if self.source == STARTER else "")
        if (self.source == STARTER) != (name == STARTER):
            raise Conflict(f"The name {STARTER!r} is reserved for the starter model, which cannot have another name.")
        return name

    def columns(self, session: Session) -> dict[str, Any]:
        return {"source": self.source, "location": self.location}

    def command(self, named: Namer) -> list[str]:
        location = [Operand(self.location)] if self.location else []
        return ["models", "add", *location, "--source", self.source]


class Quantize(FileRequest):
    """Makes a new base from `base_id`, on the CPU."""

    kind: ClassVar[str] = "quantize"
    title: ClassVar[str] = "Quantize"
    work: ClassVar[str] = "workers.child.work.models:run_quantize"
    output: ClassVar = ("quantized_id", Base)
    rate: ClassVar[Rate] = Rate(bytes=5e7, loading=5.0)

    base_id: str
    scheme: Literal["fp8", "w8a8", "w8a16", "w4a16"] = setting(
        "w4a16",
        "Bits of weights and, in servers, of activations: fp8 and w8a8 for GPUs that multiply 8-bit numbers, w8a16 and "
        "w4a16 (the smallest) for others.",
    )
    quantized_id: str = ""

    def paths(self) -> list[str]:
        return []

    def check(self, session: Session) -> None:
        base = sizes.require_row(session, Base, self.base_id)
        if quantized := (base.card or {}).get("quantization"):
            raise Unsupported(f"{base.name} is quantized already ({quantized}); choose the original model.")

    def default_name(self, session: Session) -> str:
        return f"{sizes.require_row(session, Base, self.base_id).name}-{self.scheme}"

    def columns(self, session: Session) -> dict[str, Any]:
        base = sizes.require_row(session, Base, self.base_id)
        return {"source": "quantized", "location": f"{base.name}, {self.scheme}"}

    def need(self, session: Session) -> Need:
        """The base is loaded, written with fewer bits, and loaded again."""
        size = sizes.weights_bytes(sizes.require_row(session, Base, self.base_id))
        return Need(work=2 * size, disk=size / 2, memory=1.5 * size + 5e8)

    def command(self, named: Namer) -> list[str]:
        return ["models", "quantize", Operand(named(self.base_id)), *option("scheme", self.scheme)]


class ImportDraft(FileRequest):
    """`source` is folder, hub, or upload (a folder of uploaded files, which the job removes)."""

    kind: ClassVar[str] = "import_draft"
    title: ClassVar[str] = "Import draft"
    work: ClassVar[str] = "workers.child.work.models:run_import_draft"
    output: ClassVar = ("checkpoint_id", Checkpoint)
    output_in_base: ClassVar[bool] = True
    rate: ClassVar[Rate] = Rate(bytes=3e7, loading=3.0)

    source: str = setting(..., "folder or hub; default: detected from the location.")
    location: str = setting(..., "Folder of a published draft, or its Hub id.")
    base_id: str
    layout: str = setting("", "Format of the draft, such as vllm-eagle3; default: detected.", label="Format")
    checkpoint_id: str = ""

    def default_name(self, session: Session) -> str:
        return self.location.rstrip("/").rpartition("/")[2].partition("@")[0]

    def columns(self, session: Session) -> dict[str, Any]:
        base = queries.find_base(session, self.base_id)
        return {"method": "", "config": self.to_json(), "base_id": base.id, "base_sha256": base.weights_sha256}

    def command(self, named: Namer) -> list[str]:
        uploaded = self.source == "upload"  # the user has the folder under its own name
        location = Operand(f"./{PurePath(self.location).name}" if uploaded else self.location)
        arguments = ["models", "add-draft", location, *option("model", named(self.base_id))]
        return [*arguments, "--source", "folder" if uploaded else self.source, *option("format", self.layout)]


class ImportFile(FileRequest):
    """`path` is a file of this home, a dataset on the Hub (`hub:…`), or an included one (`builtin:…`)."""

    output: ClassVar = ("dataset_id", Dataset)

    path: str
    original_name: str = ""
    limit: int | None = setting(None, LIMIT_HELP, 1, label="Max rows")
    delete_after: bool = False  # an upload
    dataset_id: str = ""
    fields: dict[str, str] = setting({}, FIELDS_HELP)

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


class ImportPrompts(ImportFile):
    """With `suite` (a key of `speculoos.suites.SUITES`) the file is that suite's; without `path` it is downloaded."""

    kind: ClassVar[str] = "import_prompts"
    title: ClassVar[str] = "Import prompts"
    rate: ClassVar[Rate] = Rate(bytes=4e6)

    suite: str = setting(
        "",
        "Import as this suite: mt_bench, humaneval, gsm8k, spec_bench, speed_bench, or speed_bench_1k to _32k. Without "
        "a file it is downloaded from the Hub, if it is there.",
    )

    def default_name(self, session: Session) -> str:
        return self.suite or super().default_name(session)

    def columns(self, session: Session) -> dict[str, Any]:
        return {"kind": "prompts", "config": self.to_json()}

    def command(self, named: Namer) -> list[str]:
        if self.path.startswith(BUILT_IN_PREFIX):
            return ["data", "add-builtin", self.path.removeprefix(BUILT_IN_PREFIX)]
        file = [Operand(self.file_name)] if self.file_name else []
        return ["data", "import", *file, *changed_options(self, "suite", "limit"), *pairs("--field", self.fields)]


class ImportAnswered(ImportFile):
    """`base_id` is the base model that generated the responses, or an equal one."""

    kind: ClassVar[str] = "import_answered"
    title: ClassVar[str] = "Import conversations"
    work: ClassVar[str] = "workers.child.work.import_prompts"
    rate: ClassVar[Rate] = Rate(bytes=6.5e5, loading=3.0)

    base_id: str

    def columns(self, session: Session) -> dict[str, Any]:
        return {"kind": "conversations", "config": self.to_json(), "base_id": self.base_id}

    def command(self, named: Namer) -> list[str]:
        arguments = ["data", "import", Operand(self.file_name), "--answered", *option("model", named(self.base_id))]
        return [*arguments, *changed_options(self, "limit"), *pairs("--field", self.fields)]


class Export(FileRequest):
    """`format` is a key of `formats.FORMATS`. There is no output row: an export can be repeated at any time."""

    kind: ClassVar[str] = "export"
    title: ClassVar[str] = "Export"
    work: ClassVar[str] = "workers.child.work.models:run_export"
    rate: ClassVar[Rate] = Rate(bytes=3e7, loading=2.5)

    checkpoint_id: str
    format: str = setting(..., "own, or a server's format: see --list. A zip if --out ends with .zip.")

    def default_name(self, session: Session) -> str:
        return f"{queries.find_checkpoint(session, self.checkpoint_id).name} for {find_format(self.format).title}"

    def need(self, session: Session) -> Need:
        """The checkpoint's files are read, written and read again."""
        size = total_bytes(Path(sizes.require_row(session, Checkpoint, self.checkpoint_id).path))
        return Need(work=size, disk=2 * size, memory=3e8)

    def command(self, named: Namer) -> list[str]:
        return ["export", Operand(named(self.checkpoint_id)), "--format", self.format]
