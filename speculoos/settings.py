"""Settings: one frozen dataclass read from environment variables and `settings.toml` in the home folder.

Loading has no side effects. NAME_FILE instead of NAME holds the path of a file with the value, such as a container
secret.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import platformdirs
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic.fields import FieldInfo

from speculoos import running_servers
from speculoos.errors import BadInput

PROJECT_ROOT = Path(__file__).resolve().parent.parent
INFERENCE_TOKEN = Path("secrets") / "inference-token"
STORED = "variable-"
"""Beginning of the names of secrets that the Settings page stores: `secrets/variable-HF_TOKEN` of the home."""
FILE = "settings.toml"
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
LOOPBACK = ("127.0.0.1", "localhost", "::1")
TRACKERS = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow"}
"""Experiment trackers for training metrics: {name in accelerate: display name}."""

# The description of a type says what is expected, for error messages.
Positive = Annotated[int, Field(ge=1, description="a whole number, 1 or more")]
Count = Annotated[int, Field(ge=0, description="a whole number, 0 or more")]
OptionalCount = Annotated[int | None, Field(ge=0, description="a whole number, 0 or more")]
Port = Annotated[int, Field(ge=1, le=65535, description="a port from 1 to 65535")]
Text = Annotated[str, Field(description="a text in quotes")]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False, description="seconds")]
Url = Annotated[str, Field(pattern="^https?://", description="http://… or https://… in quotes")]
StoreUrl = Annotated[
    str,
    BeforeValidator(lambda text: text.rstrip("/")),
    Field(pattern="^[a-z][a-z0-9+.-]*://.", description="a URL such as s3://bucket/folder or file:///folder"),
]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: tuple[str, ...] = get_args(Dtype)


def _split(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def _not_stored(name: str) -> str:
    if name == "stored":
        raise ValueError(name)
    return name


def _port_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    ports = int(first), int(last or first)
    if not 1 <= ports[0] <= ports[1] <= 65535:
        raise ValueError(text)
    return ports


PortRange = Annotated[
    tuple[int, int],
    BeforeValidator(_port_range),
    Field(description="two ports, such as 8100-8199"),
]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]
Trackers = Annotated[tuple[Literal[*TRACKERS], ...], BeforeValidator(_split)]
ServerName = Annotated[
    str,
    BeforeValidator(_not_stored),
    Field(description="another name than “stored”, which means hidden states without a server"),
]


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class Endpoint:
    """An OpenAI-compatible server, or several equal ones, configured by the operator. Pages select it by name only."""

    name: str
    url: Annotated[
        Url | Annotated[list[Url], Field(min_length=1)],
        Field(description="http://… or https://… in quotes, or a list of them"),
    ]
    key_env: Text = ""
    model: Text = ""
    concurrency: Positive = 8
    timeout: Seconds = 120.0
    retries: Count = 6
    requests_per_minute: Count = 0

    @property
    def urls(self) -> list[str]:
        """Base URLs; each handles `concurrency` concurrent requests."""
        return [self.url] if isinstance(self.url, str) else list(dict.fromkeys(self.url))

    @property
    def key(self) -> str:
        """The API key, see `secret_named`."""
        return secret_named(self.key_env)


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class HiddenStatesServer:
    """A server of a base model's hidden states, configured by the operator. Trainings select it by name only."""

    name: ServerName
    url: Url
    kind: Literal["speculoos", "vllm"] = "speculoos"
    key_env: Text = ""
    model: Text = ""  # model name in vLLM; empty: the first model it lists
    concurrency: Positive = 8  # concurrent requests to a server that takes one row per request
    timeout: Seconds = 300.0

    @property
    def root(self) -> str:
        """The URL without the `/v1` that OpenAI clients need."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def key(self) -> str:
        """The token or key, see `secret_named`."""
        return secret_named(self.key_env)


@checked_dataclass(frozen=True, config=ConfigDict(strict=True, extra="forbid"))
class EngineSettings:
    """How servers of an engine are started: with the `python` of its virtual environment, or with a `command`."""

    name: Annotated[Literal["vllm", "sglang", "llamacpp"], Field(description="vllm, sglang or llamacpp")]
    python: Text = ""
    command: Annotated[list[Text], Field(description="a list of texts in quotes")] = field(default_factory=list)
    arguments: Annotated[list[Text], Field(description="a list of texts in quotes")] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """All settings, created by `load()`. A field is read from the environment variable SPECULOOS_<FIELD NAME>, unless
    its comment names another. See docs/settings.md."""

    home: Path  # database, datasets, checkpoints and logs
    database_url: str  # DATABASE_URL; default SQLite in the home folder
    redis_url: str  # REDIS_URL; default: the private socket of the embedded server
    store: StoreUrl = ""  # fsspec URL of the store for files shared by several machines
    host: str = "127.0.0.1"  # listen address of the pages; addresses other than loopback need a password
    port: Port = 7860
    inference_host: str = "127.0.0.1"  # listen address of the inference server
    inference_port: Port = 7861
    inference_url: str = ""  # of the inference server for the pages; default: its loopback address
    inference_token: str = field(default="", repr=False)  # default: the token that `up` created in home/secrets
    password: str = field(default="", repr=False)  # of the pages, if any
    login: Literal["open", "token"] = "open"  # without a password: token needs a login link
    allowed_hosts: Names = ()  # accepted Host headers besides loopback
    publish_address: str = ""  # under which browsers reach a published container
    publish_port: Port = 0  # published port of the pages; 0: same as `port`
    publish_inference_port: Port = 0
    hf_token: str = field(default="", repr=False)  # HF_TOKEN, for gated models on the Hugging Face Hub
    device: str = "auto"  # auto, cpu, cuda or cuda:N
    dtype: Dtype = "auto"  # of base models for inference and evaluation; auto: float32 on CPU, bfloat16 on GPU
    max_upload_mb: Count = 200  # largest prompt file that the pages accept
    max_rows: Count = 1_000_000  # read from one prompt file
    stuck_seconds: Count = 120  # of one device step, after which the inference server exits to be restarted; 0: never
    metrics_token: str = field(default="", repr=False)  # for `/metrics` without login (`Authorization: Bearer …`)
    features_token: str = field(default="", repr=False)  # of `features serve`; without it only loopback is served
    webhook_hosts: Names = ()  # hosts of the internal network that webhooks may use
    trackers: Trackers = ()
    keep_runs_days: Count = 90  # chats and comparisons with their steps; 0: forever (also below)
    keep_logs_days: Count = 90  # log lines and log files of ended jobs
    keep_uploads_days: Count = 2  # uploaded files that no job needs any more
    keep_exports_days: Count = 7  # zip files for download, which are recreated on request
    keep_states_days: Count = 14  # checkpoints from which failed or cancelled trainings resume
    keep_copies: Count = 5  # automatic database backups
    min_disk_mb: OptionalCount = None  # free disk space below which jobs pause; None: see speculoos.resources
    min_memory_mb: OptionalCount = None  # available memory below which jobs pause
    job_memory_mb: Count = 0  # memory limit for all processes of a job; 0: no limit
    server_ports: PortRange = (8100, 8199)  # first and last port of servers that jobs run
    log_format: Literal["text", "json"] = "text"  # json: one object per line
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)  # [endpoints.NAME] tables and running servers
    state_servers: Mapping[str, HiddenStatesServer] = field(default_factory=dict)  # [hidden_states.NAME] tables
    engines: Mapping[str, EngineSettings] = field(default_factory=dict)  # [servers.NAME] tables

    def current(self) -> "Settings":
        """These settings with the hub token and servers that the Settings page or `speculoos endpoints` wrote, and the
        servers that were started, since the process started; a damaged file changes nothing."""
        with suppress(BadInput):
            token = read_text(os.environ, "HF_TOKEN") or stored_secret(self.home, "HF_TOKEN")
            return replace(self, hf_token=token, **_all_servers(self.home))
        return self

    @property
    def embedded_broker(self) -> bool:
        """True if REDIS_URL is not set and `up` starts its own Redis server."""
        return self.redis_url.startswith("redis+socket://") and str(self.run_dir) in self.redis_url

    @property
    def run_dir(self) -> Path:
        """Private folder for Unix sockets: a short path that is the same in every shell of this user."""
        return _run_dir(self.home)

    @property
    def inference_token_file(self) -> Path:
        return self.home / INFERENCE_TOKEN

    @property
    def hidden_states_folder(self) -> Path:
        """Hidden states that trainings store, one folder per store."""
        return self.home / "hidden-states"

    @property
    def trackers_folder(self) -> Path:
        """Default output folder of trackers, and the metadata of their runs."""
        return self.home / "trackers"

    @property
    def engines_folder(self) -> Path:
        """Virtual environments of installed servers, by package."""
        return self.home / "engines"

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def requires_login(self) -> bool:
        return bool(self.password) or self.login == "token"

    @property
    def is_shared(self) -> bool:
        """True if people other than this user may have access to the pages."""
        return bool(self.password) or bool(self.allowed_hosts) or not self.is_loopback

    @property
    def url(self) -> str:
        host = self.publish_address if self.publish_port else self.host
        host = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.publish_port or self.port}"

    @property
    def page_hosts(self) -> tuple[str, ...]:
        """Host headers that the pages accept besides loopback: allowed hosts and the published address."""
        return (*self.allowed_hosts, *_published_hosts(self.publish_address, self.publish_port))

    @property
    def inference_hosts(self) -> tuple[str, ...]:
        """Host headers that the inference server accepts besides loopback."""
        return (*self.allowed_hosts, *_published_hosts(self.publish_address, self.publish_inference_port))


def load(env: Mapping[str, str] | None = None) -> Settings:
    """Read settings from `env` (default: the process environment) and home/settings.toml.

    Raises BadInput with the name of the invalid setting.
    """
    env = os.environ if env is None else env
    home = home_of(env)
    others: dict[str, Any] = {
        "home": home,
        "database_url": read_text(env, "DATABASE_URL") or f"sqlite:///{home / 'speculoos.db'}",
        "redis_url": read_text(env, "REDIS_URL") or f"redis+socket://{_run_dir(home) / 'redis.sock'}",
        "hf_token": read_text(env, "HF_TOKEN") or stored_secret(home, "HF_TOKEN"),
        **_all_servers(home),
    }
    kinds = get_type_hints(Settings, include_extras=True)
    names = [each.name for each in fields(Settings) if each.name not in others]
    texts = {name: read_text(env, f"SPECULOOS_{name.upper()}") for name in names}
    read = {name: _checked(name, kinds[name], text) for name, text in texts.items() if text}
    read.setdefault("inference_url", f"http://127.0.0.1:{read.get('inference_port', Settings.inference_port)}")
    with suppress(OSError):
        read.setdefault("inference_token", (home / INFERENCE_TOKEN).read_text().strip())
    return Settings(**others, **read)


def read_text(env: Mapping[str, str], name: str) -> str:
    """The value of NAME, or of the file that NAME_FILE names, without surrounding whitespace."""
    if not (file := env.get(f"{name}_FILE")):
        return env.get(name, "").strip()
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise BadInput(f"{name}_FILE: cannot read {file} ({error.strerror}).") from None


def secret_file(home: Path, name: str) -> Path:
    """Where the Settings page stores a secret in place of the environment variable `name`."""
    return home / "secrets" / f"{STORED}{name}"


def stored_secret(home: Path, name: str) -> str:
    """The secret that the Settings page stored for the variable `name`; "" without one."""
    with suppress(OSError, ValueError):
        return secret_file(home, name).read_text().strip() if VARIABLE.fullmatch(name) else ""
    return ""


def secret_named(name: str) -> str:
    """The value of the environment variable `name`, otherwise what the Settings page stored for it; never in a row, log
    or page."""
    return name and (os.environ.get(name, "") or stored_secret(home_of(os.environ), name))


def servers_of(home: Path) -> dict[str, Any]:
    """The fields of Settings that come from settings.toml. Raises BadInput."""
    return {
        "endpoints": _records(home / FILE, "endpoints", Endpoint),
        "state_servers": _records(home / FILE, "hidden_states", HiddenStatesServer),
        "engines": _records(home / FILE, "servers", EngineSettings),
    }


def _all_servers(home: Path) -> dict[str, Any]:
    """`servers_of` with the servers that jobs of this machine run."""
    servers = servers_of(home)
    running = {name: Endpoint(name, **each["endpoint"]) for name, each in running_servers.running(home).items()}
    return {**servers, "endpoints": {**running, **servers["endpoints"]}}


def _checked(name: str, kind: Any, text: str) -> Any:
    try:
        return TypeAdapter(kind).validate_python(text)
    except ValidationError as error:
        expected = _expected(error, FieldInfo.from_annotation(kind))
        raise BadInput(f"SPECULOOS_{name.upper()}: expected {expected}, got {text!r}.") from None


def _expected(error: ValidationError, field: FieldInfo) -> str:
    """What was expected instead of an invalid value: the words of a Literal, or the description of a type."""
    return error.errors()[0].get("ctx", {}).get("expected") or field.description or "another value"


def home_of(env: Mapping[str, str]) -> Path:
    """The home folder: SPECULOOS_HOME, or `data/` of a git clone, or a folder in the user's data folder."""
    in_clone = (PROJECT_ROOT / "pyproject.toml").exists()
    default = PROJECT_ROOT / "data" if in_clone else platformdirs.user_data_dir("speculoos")
    return Path(read_text(env, "SPECULOOS_HOME") or default).expanduser().resolve()


def _run_dir(home: Path) -> Path:
    tag = hashlib.sha256(str(home).encode()).hexdigest()[:10]
    return Path("/tmp") / f"speculoos-{os.getuid()}-{tag}"


def _published_hosts(address: str, port: int) -> list[str]:
    """Host headers of requests to a published port. `0.0.0.0` and `::` are not host names."""
    if not port:
        return []
    names = dict.fromkeys((*LOOPBACK, *([address] if address.strip("0.:") else [])))
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names]


def _records(path: Path, section: str, kind: type) -> dict[str, Any]:
    """The [section.NAME] tables of a TOML file as `kind` objects; {} if the file does not exist."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get(section, {})
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:  # invalid TOML or UTF-8
        raise BadInput(f"{path}: {error}.") from None
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise BadInput(f"{path}: {section}: expected [{section}.NAME] tables.")
    return {name: make_record(kind, f"{path}: [{section}.{name}]", name, table) for name, table in tables.items()}


def make_record(kind: Any, where: str, name: str, table: Mapping[str, Any]) -> Any:
    """An Endpoint, HiddenStatesServer or EngineSettings. Raises BadInput; `where` is the start of the message."""
    known_fields = kind.__pydantic_fields__
    try:
        return kind(**{**table, "name": name})
    except ValidationError as error:
        first = error.errors()[0]
        if (key := first["loc"][0]) not in known_fields or first["type"] == "missing":
            required = "; url is required" if "url" in known_fields else ""
            raise BadInput(f"{where} takes {', '.join(k for k in known_fields if k != 'name')}{required}.") from None
        raise BadInput(
            f"{where} {key}: expected {_expected(error, known_fields[key])}, got {first['input']!r}."
        ) from None
