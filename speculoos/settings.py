"""Settings: one frozen dataclass read from the environment and from `settings.toml` in the home folder.

Nothing here has a side effect: folders are made by whoever writes to them.
Every setting may also be given as a file: NAME_FILE holds the path of a file with the value (secrets in containers).
"""

import hashlib
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from speculoos.errors import BadInput

CLONE = Path(__file__).resolve().parent.parent
DTYPES = ("auto", "float32", "bfloat16", "float16")
INFERENCE_TOKEN = Path("secrets") / "inference-token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOGINS = ("open", "token")


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

    @property
    def urls(self) -> list[str]:
        """Its base URLs; each takes `concurrency` requests at once."""
        return [self.url] if isinstance(self.url, str) else list(dict.fromkeys(self.url))

    @property
    def key(self) -> str:
        """The API key, from the environment variable `key_env`; never stored or logged."""
        return os.environ.get(self.key_env, "") if self.key_env else ""


@dataclass(frozen=True)
class Settings:
    """Everything that can be set from outside. `load()` makes one."""

    home: Path
    """Where rows, data sets, checkpoints and logs live (SPECULOOS_HOME)."""
    database_url: str
    """DATABASE_URL; default SQLite in the home folder."""
    redis_url: str
    """REDIS_URL; default the embedded server's private socket."""
    host: str = "127.0.0.1"
    """SPECULOOS_HOST: where the pages listen. Other than loopback needs a password."""
    port: int = 7860
    """SPECULOOS_PORT."""
    inference_host: str = "127.0.0.1"
    """SPECULOOS_INFERENCE_HOST: where the inference server listens."""
    inference_port: int = 7861
    """SPECULOOS_INFERENCE_PORT."""
    inference_url: str = ""
    """SPECULOOS_INFERENCE_URL: how the pages reach the inference server; default its loopback address."""
    inference_token: str = field(default="", repr=False)
    """SPECULOOS_INFERENCE_TOKEN; default the one `up` made in home/secrets."""
    password: str = field(default="", repr=False)
    """SPECULOOS_PASSWORD: asked for by the pages when set."""
    login: str = "open"
    """SPECULOOS_LOGIN: without a password, `open` lets in whoever reaches the address, `token` asks for a link."""
    allowed_hosts: tuple[str, ...] = ()
    """SPECULOOS_ALLOWED_HOSTS: further Host headers to accept, comma-separated; loopback always is."""
    publish_address: str = ""
    """SPECULOOS_PUBLISH_ADDRESS: where browsers reach a server that is published elsewhere (containers)."""
    publish_port: int = 0
    """SPECULOOS_PUBLISH_PORT: the port there; 0 when it is `port`."""
    publish_inference_port: int = 0
    """SPECULOOS_PUBLISH_INFERENCE_PORT: the same for the inference server."""
    hf_token: str = field(default="", repr=False)
    """HF_TOKEN: for gated models on the hub."""
    device: str = "auto"
    """SPECULOOS_DEVICE: auto, cpu, cuda or cuda:N."""
    dtype: str = "auto"
    """SPECULOOS_DTYPE: in which precision bases answer and are measured; auto: float32 on CPUs, bfloat16 on GPUs."""
    max_upload_mb: int = 200
    """SPECULOOS_MAX_UPLOAD_MB: largest prompt file accepted by the pages."""
    max_rows: int = 1_000_000
    """SPECULOOS_MAX_ROWS: most rows read from one prompt file."""
    stuck_seconds: int = 120
    """SPECULOOS_STUCK_SECONDS: how long the inference server's device may give no sign of life within one step before
    the server ends itself to be started again; loading and long prompts get more. 0: for ever."""
    metrics_token: str = field(default="", repr=False)
    """SPECULOOS_METRICS_TOKEN: with it `/metrics` is read without logging in (`Authorization: Bearer …`)."""
    keep_runs_days: int = 90
    """SPECULOOS_KEEP_RUNS_DAYS: chats and comparisons with their steps; 0 keeps them for ever (as in all below)."""
    keep_logs_days: int = 90
    """SPECULOOS_KEEP_LOGS_DAYS: log lines and log files of jobs that have ended."""
    keep_logs_mb: int = 1000
    """SPECULOOS_KEEP_LOGS_MB: all log files of ended jobs together; the oldest go first."""
    keep_uploads_days: int = 2
    """SPECULOOS_KEEP_UPLOADS_DAYS: files given to the pages that no job needs any more."""
    keep_exports_days: int = 7
    """SPECULOOS_KEEP_EXPORTS_DAYS: zips made for download; they are made again when someone asks."""
    keep_states_days: int = 14
    """SPECULOOS_KEEP_STATES_DAYS: states of failed and cancelled trainings, from which a retry goes on."""
    keep_copies: int = 5
    """SPECULOOS_KEEP_COPIES: how many automatic copies of the database are kept."""
    min_disk_mb: int | None = None
    """SPECULOOS_MIN_DISK_MB: free space below which jobs pause; None for the default (see speculoos.room)."""
    min_memory_mb: int | None = None
    """SPECULOOS_MIN_MEMORY_MB: available memory below which jobs pause; None for the default."""
    job_memory_mb: int = 0
    """SPECULOOS_JOB_MEMORY_MB: most memory the processes of one job may take; 0 for what the machine has."""
    log_format: str = "text"
    """SPECULOOS_LOG_FORMAT: text or json, one line each."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """[endpoints.NAME] tables of settings.toml."""

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
    home = Path(_value(env, "SPECULOOS_HOME") or default_home()).expanduser().resolve()
    inference_port = _port(env, "SPECULOOS_INFERENCE_PORT", 7861)
    return Settings(
        home=home,
        database_url=_value(env, "DATABASE_URL") or f"sqlite:///{home / 'speculoos.db'}",
        redis_url=_value(env, "REDIS_URL") or f"redis+socket://{_run_dir(home) / 'redis.sock'}",
        host=_value(env, "SPECULOOS_HOST") or "127.0.0.1",
        port=_port(env, "SPECULOOS_PORT", 7860),
        inference_host=_value(env, "SPECULOOS_INFERENCE_HOST") or "127.0.0.1",
        inference_port=inference_port,
        inference_url=_value(env, "SPECULOOS_INFERENCE_URL") or f"http://127.0.0.1:{inference_port}",
        inference_token=_value(env, "SPECULOOS_INFERENCE_TOKEN") or _read(home / INFERENCE_TOKEN),
        password=_value(env, "SPECULOOS_PASSWORD"),
        login=_one_of(env, "SPECULOOS_LOGIN", LOGINS),
        publish_address=_value(env, "SPECULOOS_PUBLISH_ADDRESS"),
        publish_port=_port(env, "SPECULOOS_PUBLISH_PORT", 0),
        publish_inference_port=_port(env, "SPECULOOS_PUBLISH_INFERENCE_PORT", 0),
        allowed_hosts=tuple(h.strip() for h in _value(env, "SPECULOOS_ALLOWED_HOSTS").split(",") if h.strip()),
        hf_token=_value(env, "HF_TOKEN"),
        device=_value(env, "SPECULOOS_DEVICE") or "auto",
        dtype=_dtype(env),
        max_upload_mb=_int(env, "SPECULOOS_MAX_UPLOAD_MB", 200),
        max_rows=_int(env, "SPECULOOS_MAX_ROWS", 1_000_000),
        stuck_seconds=_int(env, "SPECULOOS_STUCK_SECONDS", 120, least=0),
        metrics_token=_value(env, "SPECULOOS_METRICS_TOKEN"),
        keep_runs_days=_int(env, "SPECULOOS_KEEP_RUNS_DAYS", 90, least=0),
        keep_logs_days=_int(env, "SPECULOOS_KEEP_LOGS_DAYS", 90, least=0),
        keep_logs_mb=_int(env, "SPECULOOS_KEEP_LOGS_MB", 1000, least=0),
        keep_uploads_days=_int(env, "SPECULOOS_KEEP_UPLOADS_DAYS", 2, least=0),
        keep_exports_days=_int(env, "SPECULOOS_KEEP_EXPORTS_DAYS", 7, least=0),
        keep_states_days=_int(env, "SPECULOOS_KEEP_STATES_DAYS", 14, least=0),
        keep_copies=_int(env, "SPECULOOS_KEEP_COPIES", 5, least=0),
        min_disk_mb=_optional(env, "SPECULOOS_MIN_DISK_MB"),
        min_memory_mb=_optional(env, "SPECULOOS_MIN_MEMORY_MB"),
        job_memory_mb=_int(env, "SPECULOOS_JOB_MEMORY_MB", 0, least=0),
        log_format=_one_of(env, "SPECULOOS_LOG_FORMAT", ("text", "json")),
        endpoints=_endpoints(home / "settings.toml"),
    )


def default_home() -> Path:
    """The clone's `data/` when running from one, else the user's data folder."""
    if (CLONE / "pyproject.toml").exists():
        return CLONE / "data"
    return Path(platformdirs.user_data_dir("speculoos"))


def _run_dir(home: Path) -> Path:
    tag = hashlib.sha256(str(home).encode()).hexdigest()[:10]
    return Path("/tmp") / f"speculoos-{os.getuid()}-{tag}"


def _value(env: Mapping[str, str], name: str) -> str:
    if file := env.get(f"{name}_FILE"):
        try:
            return Path(file).read_text().strip()
        except OSError as error:
            raise BadInput(f"{name}_FILE: cannot read {file} ({error.strerror}).") from None
    return env.get(name, "").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _int(env: Mapping[str, str], name: str, default: int, least: int | None = None) -> int:
    text = _value(env, name)
    try:
        number = int(text) if text else default
    except ValueError:
        raise BadInput(f"{name}: expected a whole number, got {text!r}.") from None
    if least is not None and number < least:
        raise BadInput(f"{name}: expected a whole number, {least} or more, got {text!r}.")
    return number


def _optional(env: Mapping[str, str], name: str) -> int | None:
    """A whole number, 0 or more, or None where nothing is set."""
    return _int(env, name, 0, least=0) if _value(env, name) else None


def _one_of(env: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """One of `choices`, the first where nothing is set."""
    text = _value(env, name).lower() or choices[0]
    if text not in choices:
        raise BadInput(f"{name}: expected {' or '.join(choices)}, got {text!r}.")
    return text


def _dtype(env: Mapping[str, str]) -> str:
    name = _value(env, "SPECULOOS_DTYPE") or "auto"
    if name not in DTYPES:
        raise BadInput(f"SPECULOOS_DTYPE: expected one of {', '.join(DTYPES)}, got {name!r}.")
    return name


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    port = _int(env, name, default)
    if not 0 < port < 2**16 and _value(env, name):
        raise BadInput(f"{name}: expected a port from 1 to 65535, got {port}.")
    return port


def _optional(env: Mapping[str, str], name: str) -> int | None:
    """A whole number, 0 or more, or None where nothing is set."""
    return _int(env, name, 0, least=0) if _value(env, name) else None


def _one_of(env: Mapping[str, str], name: str, known: tuple[str, ...]) -> str:
    text = _value(env, name) or known[0]
    if text not in known:
        raise BadInput(f"{name}: expected {' or '.join(known)}, got {text!r}.")
    return text


def _published(address: str, port: int) -> list[str]:
    """Host headers of browsers that come by a published port. `0.0.0.0` and `::` name no host."""
    if not port:
        return []
    names = dict.fromkeys((*LOOPBACK, *([address] if address.strip("0.:") else [])))
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names]


def _endpoints(path: Path) -> dict[str, Endpoint]:
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get("endpoints", {})
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:  # TOML's own, and bytes that are not UTF-8
        raise BadInput(f"{path}: {error}.") from None
    if not isinstance(tables, dict):
        raise BadInput(f"{path}: endpoints: expected [endpoints.NAME] tables, each with its url.")
    endpoints = {}
    for name, table in tables.items():
        try:
            endpoints[name] = Endpoint(name=name, **table)
        except TypeError:
            known = ", ".join(k for k in Endpoint.__dataclass_fields__ if k != "name")
            raise BadInput(f"{path}: [endpoints.{name}] takes {known}; url is required.") from None
        _check_endpoint(endpoints[name], f"{path}: [endpoints.{name}]")
    return endpoints


def _check_endpoint(endpoint: Endpoint, where: str) -> None:
    for key in ("key_env", "model"):
        if not isinstance(value := getattr(endpoint, key), str):
            raise BadInput(f"{where} {key}: expected a text in quotes, got {value!r}.")
    urls = [endpoint.url] if isinstance(endpoint.url, str) else endpoint.url
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) for url in urls):
        raise BadInput(f"{where} url: expected a text in quotes, or a list of them, got {endpoint.url!r}.")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"{where} url: expected http://… or https://…, got {url!r}.")
    for key, least in (("concurrency", 1), ("retries", 0)):
        if type(value := getattr(endpoint, key)) is not int or value < least:
            raise BadInput(f"{where} {key}: expected a whole number, {least} or more, got {value!r}.")
    if type(endpoint.timeout) not in (int, float) or not 0 < endpoint.timeout < math.inf:
        raise BadInput(f"{where} timeout: expected seconds, got {endpoint.timeout!r}.")
