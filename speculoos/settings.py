"""Settings: one frozen dataclass read from the environment and from `settings.toml` in the home folder.

Nothing here has a side effect: folders are made by whoever writes to them.
Every setting may also be given as a file, such as secrets in containers (`speculoos.environment`).
"""

import hashlib
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import platformdirs

from speculoos.environment import Env, Read, one_of, read_count, read_list, read_number, read_port, read_text, some_of
from speculoos.errors import BadInput

CLONE = Path(__file__).resolve().parent.parent
DTYPES = ("auto", "float32", "bfloat16", "float16")
INFERENCE_TOKEN = Path("secrets") / "inference-token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOGINS = ("open", "token")
TRACKERS = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow", "trackio": "trackio"}
"""Where a training's metrics can go: what accelerate calls them, what people do."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server named by the operator (or several equal ones); pages choose the name, never a URL."""

    name: str
    url: str | list[str]
    key_env: str = ""
    model: str = ""
    concurrency: int = 8
    timeout: float = 120.0
    retries: int = 6
    requests_per_minute: int = 0

    @property
    def urls(self) -> list[str]:
        """Its base URLs; each takes `concurrency` requests at once."""
        return [self.url] if isinstance(self.url, str) else list(dict.fromkeys(self.url))

    @property
    def key(self) -> str:
        """The API key, from the environment variable `key_env`; never stored or logged."""
        return os.environ.get(self.key_env, "") if self.key_env else ""


STATE_SERVERS = ("speculoos", "vllm", "sglang")


@dataclass(frozen=True)
class StateServer:
    """A server of a base's hidden states named by the operator; trainings choose the name, never a URL."""

    name: str
    url: str
    kind: str = "speculoos"
    """Whose protocol it speaks: one of STATE_SERVERS."""
    key_env: str = ""
    model: str = ""
    """What vLLM calls the model; empty: the first one it lists."""
    concurrency: int = 8
    """Rows asked at once of a server that takes one row a request."""
    timeout: float = 300.0

    @property
    def root(self) -> str:
        """The url without the `/v1` that OpenAI's clients want."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def key(self) -> str:
        """The token or key, from the environment variable `key_env`; never stored or logged."""
        return os.environ.get(self.key_env, "") if self.key_env else ""


def _setting(read: Read, default: Any, secret: bool = False) -> Any:
    """A field that `load` reads by `read` from the environment variable SPECULOOS_ and the field's name."""
    return field(default=default, repr=not secret, metadata={"read": read})


def _store(env: Env, name: str, default: str) -> str:
    url = read_text(env, name, default).rstrip("/")
    if url and not re.match(r"[a-z][a-z0-9+.-]*://.", url):
        raise BadInput(f"{name}: expected a URL such as s3://bucket/folder or file:///folder, got {url!r}.")
    return url


@dataclass(frozen=True)
class Settings:
    """Everything that can be set from outside. `load()` makes one."""

    home: Path
    """Where rows, data sets, checkpoints and logs live (SPECULOOS_HOME)."""
    database_url: str
    """DATABASE_URL; default SQLite in the home folder."""
    redis_url: str
    """REDIS_URL; default the embedded server's private socket."""
    store: str = _setting(_store, "")
    """SPECULOOS_STORE: where files lie that several machines need, as fsspec writes it (`s3://bucket/folder`)."""
    host: str = _setting(read_text, "127.0.0.1")
    """SPECULOOS_HOST: where the pages listen. Other than loopback needs a password."""
    port: int = _setting(read_port, 7860)
    """SPECULOOS_PORT."""
    inference_host: str = _setting(read_text, "127.0.0.1")
    """SPECULOOS_INFERENCE_HOST: where the inference server listens."""
    inference_port: int = _setting(read_port, 7861)
    """SPECULOOS_INFERENCE_PORT."""
    inference_url: str = ""
    """SPECULOOS_INFERENCE_URL: how the pages reach the inference server; default its loopback address."""
    inference_token: str = field(default="", repr=False)
    """SPECULOOS_INFERENCE_TOKEN; default the one `up` made in home/secrets."""
    password: str = _setting(read_text, "", secret=True)
    """SPECULOOS_PASSWORD: asked for by the pages when set."""
    login: str = _setting(one_of(*LOGINS), "open")
    """SPECULOOS_LOGIN: without a password, `open` lets in whoever reaches the address, `token` asks for a link."""
    allowed_hosts: tuple[str, ...] = _setting(read_list, ())
    """SPECULOOS_ALLOWED_HOSTS: further Host headers to accept, comma-separated; loopback always is."""
    publish_address: str = _setting(read_text, "")
    """SPECULOOS_PUBLISH_ADDRESS: where browsers reach a server that is published elsewhere (containers)."""
    publish_port: int = _setting(read_port, 0)
    """SPECULOOS_PUBLISH_PORT: the port there; 0 when it is `port`."""
    publish_inference_port: int = _setting(read_port, 0)
    """SPECULOOS_PUBLISH_INFERENCE_PORT: the same for the inference server."""
    hf_token: str = field(default="", repr=False)
    """HF_TOKEN: for gated models on the hub."""
    device: str = _setting(read_text, "auto")
    """SPECULOOS_DEVICE: auto, cpu, cuda or cuda:N."""
    dtype: str = _setting(one_of(*DTYPES), "auto")
    """SPECULOOS_DTYPE: in which precision bases answer and are measured; auto: float32 on CPUs, bfloat16 on GPUs."""
    max_upload_mb: int = _setting(read_number, 200)
    """SPECULOOS_MAX_UPLOAD_MB: largest prompt file accepted by the pages."""
    max_rows: int = _setting(read_number, 1_000_000)
    """SPECULOOS_MAX_ROWS: most rows read from one prompt file."""
    stuck_seconds: int = _setting(read_count, 120)
    """SPECULOOS_STUCK_SECONDS: how long the inference server's device may give no sign of life within one step before
    the server ends itself to be started again; loading and long prompts get more. 0: for ever."""
    metrics_token: str = _setting(read_text, "", secret=True)
    """SPECULOOS_METRICS_TOKEN: with it `/metrics` is read without logging in (`Authorization: Bearer …`)."""
    features_token: str = _setting(read_text, "", secret=True)
    """SPECULOOS_FEATURES_TOKEN: asked for by `speculoos features serve`, which listens on loopback only without."""
    webhook_hosts: tuple[str, ...] = _setting(read_list, ())
    """SPECULOOS_WEBHOOK_HOSTS: hosts inside this network, comma-separated, that may be told of ended jobs."""
    trackers: tuple[str, ...] = _setting(some_of(*TRACKERS), ())
    """SPECULOOS_TRACKERS: where metrics of trainings go too, comma-separated: some of TRACKERS."""
    keep_runs_days: int = _setting(read_count, 90)
    """SPECULOOS_KEEP_RUNS_DAYS: chats and comparisons with their steps; 0 keeps them for ever (as in all below)."""
    keep_logs_days: int = _setting(read_count, 90)
    """SPECULOOS_KEEP_LOGS_DAYS: log lines and log files of jobs that have ended."""
    keep_logs_mb: int = _setting(read_count, 1000)
    """SPECULOOS_KEEP_LOGS_MB: all log files of ended jobs together; the oldest go first."""
    keep_uploads_days: int = _setting(read_count, 2)
    """SPECULOOS_KEEP_UPLOADS_DAYS: files given to the pages that no job needs any more."""
    keep_exports_days: int = _setting(read_count, 7)
    """SPECULOOS_KEEP_EXPORTS_DAYS: zips made for download; they are made again when someone asks."""
    keep_states_days: int = _setting(read_count, 14)
    """SPECULOOS_KEEP_STATES_DAYS: states of failed and cancelled trainings, from which a retry goes on."""
    keep_copies: int = _setting(read_count, 5)
    """SPECULOOS_KEEP_COPIES: how many automatic copies of the database are kept."""
    min_disk_mb: int | None = _setting(read_count, None)
    """SPECULOOS_MIN_DISK_MB: free space below which jobs pause; None for the default (see speculoos.room)."""
    min_memory_mb: int | None = _setting(read_count, None)
    """SPECULOOS_MIN_MEMORY_MB: available memory below which jobs pause; None for the default."""
    job_memory_mb: int = _setting(read_count, 0)
    """SPECULOOS_JOB_MEMORY_MB: most memory the processes of one job may take; 0 for what the machine has."""
    log_format: str = _setting(one_of("text", "json"), "text")
    """SPECULOOS_LOG_FORMAT: text or json, one line each."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """[endpoints.NAME] tables of settings.toml."""
    state_servers: Mapping[str, StateServer] = field(default_factory=dict)
    """[hidden_states.NAME] tables of settings.toml."""

    @property
    def embedded_broker(self) -> bool:
        """True when no REDIS_URL was given and `up` runs its own server."""
        return self.redis_url.startswith("redis+socket://") and str(self.run_dir) in self.redis_url

    @property
    def run_dir(self) -> Path:
        """Private folder for sockets, short enough for a Unix socket path, the same from every shell of this user."""
        return _run_dir(self.home)

    @property
    def inference_token_file(self) -> Path:
        return self.home / INFERENCE_TOKEN

    @property
    def hidden_states_folder(self) -> Path:
        """Where trainings keep hidden states, a folder for each store."""
        return self.home / "hidden-states"

    @property
    def trackers_folder(self) -> Path:
        """Where trackers write that are not told another place, and notes on their runs."""
        return self.home / "trackers"

    @property
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def asks_login(self) -> bool:
        """True when the pages open only to who logs in."""
        return bool(self.password) or self.login == "token"

    @property
    def is_shared(self) -> bool:
        """True when people may come in who cannot read this user's files anyway."""
        return bool(self.password) or bool(self.allowed_hosts) or not self.is_loopback

    @property
    def url(self) -> str:
        """Where browsers find the pages."""
        host = self.publish_address if self.publish_port else self.host
        host = "127.0.0.1" if host in ("", "0.0.0.0", "::") else host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.publish_port or self.port}"

    @property
    def page_hosts(self) -> tuple[str, ...]:
        """Further Host headers the pages accept: the allowed ones, and where they are published."""
        return (*self.allowed_hosts, *_published(self.publish_address, self.publish_port))

    @property
    def inference_hosts(self) -> tuple[str, ...]:
        """Further Host headers the inference server accepts."""
        return (*self.allowed_hosts, *_published(self.publish_address, self.publish_inference_port))


def load(env: Mapping[str, str] | None = None) -> Settings:
    """Read settings from `env` (default the process environment) and home/settings.toml.

    Raises BadInput with the name of the setting that is wrong.
    """
    env = os.environ if env is None else env
    home = home_of(env)
    read = {
        each.name: each.metadata["read"](env, f"SPECULOOS_{each.name.upper()}", each.default)
        for each in fields(Settings)
        if "read" in each.metadata
    }
    inference_url = f"http://127.0.0.1:{read['inference_port']}"
    return Settings(
        home=home,
        database_url=read_text(env, "DATABASE_URL", f"sqlite:///{home / 'speculoos.db'}"),
        redis_url=read_text(env, "REDIS_URL", f"redis+socket://{_run_dir(home) / 'redis.sock'}"),
        inference_url=read_text(env, "SPECULOOS_INFERENCE_URL", inference_url),
        inference_token=read_text(env, "SPECULOOS_INFERENCE_TOKEN") or _kept_token(home),
        hf_token=read_text(env, "HF_TOKEN"),
        endpoints=_records(home / "settings.toml", "endpoints", Endpoint, check_endpoint),
        state_servers=_records(home / "settings.toml", "hidden_states", StateServer, _check_state_server),
        **read,
    )


def home_of(env: Mapping[str, str]) -> Path:
    """The home folder that `env` names, or the default one."""
    return Path(read_text(env, "SPECULOOS_HOME") or default_home()).expanduser().resolve()


def default_home() -> Path:
    """The clone's `data/` when running from one, else the user's data folder."""
    if (CLONE / "pyproject.toml").exists():
        return CLONE / "data"
    return Path(platformdirs.user_data_dir("speculoos"))


def _run_dir(home: Path) -> Path:
    tag = hashlib.sha256(str(home).encode()).hexdigest()[:10]
    return Path("/tmp") / f"speculoos-{os.getuid()}-{tag}"


def _kept_token(home: Path) -> str:
    try:
        return (home / INFERENCE_TOKEN).read_text().strip()
    except OSError:
        return ""


def _published(address: str, port: int) -> list[str]:
    """Host headers of browsers that come by a published port. `0.0.0.0` and `::` name no host."""
    if not port:
        return []
    names = dict.fromkeys((*LOOPBACK, *([address] if address.strip("0.:") else [])))
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names]


def _records(path: Path, section: str, kind: Any, check: Callable[[Any, str], None]) -> dict[str, Any]:
    """The [section.NAME] tables of a TOML file, each as `kind`, looked at; none where there is no file."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get(section, {})
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:  # TOML's own, and bytes that are not UTF-8
        raise BadInput(f"{path}: {error}.") from None
    if not isinstance(tables, dict):
        raise BadInput(f"{path}: {section}: expected [{section}.NAME] tables, each with its url.")
    records = {}
    for name, table in tables.items():
        where = f"{path}: [{section}.{name}]"
        try:
            records[name] = kind(name=name, **table)
        except TypeError:
            known = ", ".join(k for k in kind.__dataclass_fields__ if k != "name")
            raise BadInput(f"{where} takes {known}; url is required.") from None
        check(records[name], where)
    return records


def check_endpoint(endpoint: Endpoint, where: str) -> None:
    """Raise BadInput, beginning with `where`, for an endpoint that cannot be."""
    _check_texts(endpoint, where)
    urls = [endpoint.url] if isinstance(endpoint.url, str) else endpoint.url
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) for url in urls):
        raise BadInput(f"{where} url: expected a text in quotes, or a list of them, got {endpoint.url!r}.")
    for url in urls:
        _check_url(url, where)
    _check_numbers(endpoint, where, ("concurrency", 1), ("retries", 0), ("requests_per_minute", 0))


def _check_state_server(server: StateServer, where: str) -> None:
    _check_texts(server, where)
    if not isinstance(server.url, str):
        raise BadInput(f"{where} url: expected a text in quotes, got {server.url!r}.")
    _check_url(server.url, where)
    if server.kind not in STATE_SERVERS:
        raise BadInput(f"{where} kind: expected one of {', '.join(STATE_SERVERS)}, got {server.kind!r}.")
    if server.name == "stored":
        raise BadInput(f"{where}: “stored” means the store alone, without a server; choose another name.")
    _check_numbers(server, where, ("concurrency", 1))


def _check_texts(record: Endpoint | StateServer, where: str) -> None:
    for key in ("key_env", "model"):
        if not isinstance(value := getattr(record, key), str):
            raise BadInput(f"{where} {key}: expected a text in quotes, got {value!r}.")


def _check_url(url: str, where: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"{where} url: expected http://… or https://…, got {url!r}.")


def _check_numbers(record: Endpoint | StateServer, where: str, *numbers: tuple[str, int]) -> None:
    for key, least in numbers:
        if type(value := getattr(record, key)) is not int or value < least:
            raise BadInput(f"{where} {key}: expected a whole number, {least} or more, got {value!r}.")
    if type(record.timeout) not in (int, float) or not 0 < record.timeout < math.inf:
        raise BadInput(f"{where} timeout: expected seconds, got {record.timeout!r}.")
