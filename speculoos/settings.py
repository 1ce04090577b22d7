"""Settings: one frozen dataclass read from environment variables and `settings.toml` in the home folder.

Loading has no side effects. Every setting can also be read from a file (see `speculoos.environment`).
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

PROJECT_ROOT = Path(__file__).resolve().parent.parent
DTYPES = ("auto", "float32", "bfloat16", "float16")
INFERENCE_TOKEN = Path("secrets") / "inference-token"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOGINS = ("open", "token")
TRACKERS = {"tensorboard": "TensorBoard", "wandb": "Weights & Biases", "mlflow": "MLflow", "trackio": "trackio"}
"""Experiment trackers for training metrics: {name in accelerate: display name}."""


@dataclass(frozen=True)
class Endpoint:
    """An OpenAI-compatible server, or several equal ones, configured by the operator. Pages select it by name only."""

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
        """Base URLs; each handles `concurrency` concurrent requests."""
        return [self.url] if isinstance(self.url, str) else list(dict.fromkeys(self.url))

    @property
    def key(self) -> str:
        """The API key, from the environment variable `key_env`; never stored or logged."""
        return os.environ.get(self.key_env, "") if self.key_env else ""


HIDDEN_STATES_PROTOCOLS = ("speculoos", "vllm", "sglang")


@dataclass(frozen=True)
class HiddenStatesServer:
    """A server of a base model's hidden states, configured by the operator. Trainings select it by name only."""

    name: str
    url: str
    kind: str = "speculoos"
    """Protocol of the server: one of STATE_SERVERS."""
    key_env: str = ""
    model: str = ""
    """Model name in vLLM; empty: the first model it lists."""
    concurrency: int = 8
    """Concurrent requests to a server that takes one row per request."""
    timeout: float = 300.0

    @property
    def root(self) -> str:
        """The URL without the `/v1` that OpenAI clients need."""
        return self.url.rstrip("/").removesuffix("/v1")

    @property
    def key(self) -> str:
        """The token or key, from the environment variable `key_env`; never stored or logged."""
        return os.environ.get(self.key_env, "") if self.key_env else ""


def _setting(read: Read, default: Any, secret: bool = False) -> Any:
    """A field that `load` reads with `read` from the environment variable SPECULOOS_<FIELD NAME>."""
    return field(default=default, repr=not secret, metadata={"read": read})


def _read_store_url(env: Env, name: str, default: str) -> str:
    url = read_text(env, name, default).rstrip("/")
    if url and not re.match(r"[a-z][a-z0-9+.-]*://.", url):
        raise BadInput(f"{name}: expected a URL such as s3://bucket/folder or file:///folder, got {url!r}.")
    return url


@dataclass(frozen=True)
class Settings:
    """All settings. Created by `load()`."""

    home: Path
    """SPECULOOS_HOME: folder of the database, data sets, checkpoints and logs."""
    database_url: str
    """DATABASE_URL; default SQLite in the home folder."""
    redis_url: str
    """REDIS_URL; default: the private socket of the embedded server."""
    store: str = _setting(_read_store_url, "")
    """SPECULOOS_STORE: fsspec URL of the store for files shared by several machines (`s3://bucket/folder`)."""
    host: str = _setting(read_text, "127.0.0.1")
    """SPECULOOS_HOST: listen address of the pages. Addresses other than loopback need a password."""
    port: int = _setting(read_port, 7860)
    """SPECULOOS_PORT: port of the pages."""
    inference_host: str = _setting(read_text, "127.0.0.1")
    """SPECULOOS_INFERENCE_HOST: listen address of the inference server."""
    inference_port: int = _setting(read_port, 7861)
    """SPECULOOS_INFERENCE_PORT: port of the inference server."""
    inference_url: str = ""
    """SPECULOOS_INFERENCE_URL: URL of the inference server for the pages; default: its loopback address."""
    inference_token: str = field(default="", repr=False)
    """SPECULOOS_INFERENCE_TOKEN; default: the token that `up` created in home/secrets."""
    password: str = _setting(read_text, "", secret=True)
    """SPECULOOS_PASSWORD: password of the pages, if any."""
    login: str = _setting(one_of(*LOGINS), "open")
    """SPECULOOS_LOGIN: without a password, `open` needs no login, `token` needs a login link."""
    allowed_hosts: tuple[str, ...] = _setting(read_list, ())
    """SPECULOOS_ALLOWED_HOSTS: accepted Host headers besides loopback, comma-separated."""
    publish_address: str = _setting(read_text, "")
    """SPECULOOS_PUBLISH_ADDRESS: address under which browsers reach a published container."""
    publish_port: int = _setting(read_port, 0)
    """SPECULOOS_PUBLISH_PORT: published port of the pages; 0: same as `port`."""
    publish_inference_port: int = _setting(read_port, 0)
    """SPECULOOS_PUBLISH_INFERENCE_PORT: published port of the inference server."""
    hf_token: str = field(default="", repr=False)
    """HF_TOKEN: access token for gated models on the Hugging Face Hub."""
    device: str = _setting(read_text, "auto")
    """SPECULOOS_DEVICE: auto, cpu, cuda or cuda:N."""
    dtype: str = _setting(one_of(*DTYPES), "auto")
    """SPECULOOS_DTYPE: dtype of base models for inference and evaluation; auto: float32 on CPU, bfloat16 on GPU."""
    max_upload_mb: int = _setting(read_number, 200)
    """SPECULOOS_MAX_UPLOAD_MB: largest prompt file that the pages accept."""
    max_rows: int = _setting(read_number, 1_000_000)
    """SPECULOOS_MAX_ROWS: maximum rows read from one prompt file."""
    stuck_seconds: int = _setting(read_count, 120)
    """SPECULOOS_STUCK_SECONDS: timeout of one device step, after which the inference server exits to be restarted;
    loading and long prompts get more time. 0: no timeout."""
    metrics_token: str = _setting(read_text, "", secret=True)
    """SPECULOOS_METRICS_TOKEN: gives access to `/metrics` without login (`Authorization: Bearer …`)."""
    features_token: str = _setting(read_text, "", secret=True)
    """SPECULOOS_FEATURES_TOKEN: token of `speculoos features serve`; without it the server accepts loopback only."""
    webhook_hosts: tuple[str, ...] = _setting(read_list, ())
    """SPECULOOS_WEBHOOK_HOSTS: hosts of the internal network that webhooks may use, comma-separated."""
    trackers: tuple[str, ...] = _setting(some_of(*TRACKERS), ())
    """SPECULOOS_TRACKERS: experiment trackers for training metrics, comma-separated: some of TRACKERS."""
    keep_runs_days: int = _setting(read_count, 90)
    """SPECULOOS_KEEP_RUNS_DAYS: retention of chats and comparisons with their steps; 0: forever (also below)."""
    keep_logs_days: int = _setting(read_count, 90)
    """SPECULOOS_KEEP_LOGS_DAYS: retention of log lines and log files of ended jobs."""
    keep_logs_mb: int = _setting(read_count, 1000)
    """SPECULOOS_KEEP_LOGS_MB: maximum total size of ended jobs' log files; the oldest are deleted first."""
    keep_uploads_days: int = _setting(read_count, 2)
    """SPECULOOS_KEEP_UPLOADS_DAYS: retention of uploaded files that no job needs any more."""
    keep_exports_days: int = _setting(read_count, 7)
    """SPECULOOS_KEEP_EXPORTS_DAYS: retention of zip files for download, which are recreated on request."""
    keep_states_days: int = _setting(read_count, 14)
    """SPECULOOS_KEEP_STATES_DAYS: retention of the checkpoints from which failed or cancelled trainings resume."""
    keep_copies: int = _setting(read_count, 5)
    """SPECULOOS_KEEP_COPIES: number of automatic database backups to keep."""
    min_disk_mb: int | None = _setting(read_count, None)
    """SPECULOOS_MIN_DISK_MB: free disk space below which jobs pause; None: the default (see speculoos.resources)."""
    min_memory_mb: int | None = _setting(read_count, None)
    """SPECULOOS_MIN_MEMORY_MB: available memory below which jobs pause; None: the default."""
    job_memory_mb: int = _setting(read_count, 0)
    """SPECULOOS_JOB_MEMORY_MB: memory limit for all processes of a job; 0: no limit."""
    log_format: str = _setting(one_of("text", "json"), "text")
    """SPECULOOS_LOG_FORMAT: text, or json with one object per line."""
    endpoints: Mapping[str, Endpoint] = field(default_factory=dict)
    """[endpoints.NAME] tables of settings.toml."""
    state_servers: Mapping[str, HiddenStatesServer] = field(default_factory=dict)
    """[hidden_states.NAME] tables of settings.toml."""

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
    def is_loopback(self) -> bool:
        return self.host in LOOPBACK

    @property
    def asks_login(self) -> bool:
        """True if the pages require a login."""
        return bool(self.password) or self.login == "token"

    @property
    def is_shared(self) -> bool:
        """True if people other than this user may have access to the pages."""
        return bool(self.password) or bool(self.allowed_hosts) or not self.is_loopback

    @property
    def url(self) -> str:
        """URL of the pages for browsers."""
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
    read = {
        item.name: item.metadata["read"](env, f"SPECULOOS_{item.name.upper()}", item.default)
        for item in fields(Settings)
        if "read" in item.metadata
    }
    inference_url = f"http://127.0.0.1:{read['inference_port']}"
    return Settings(
        home=home,
        database_url=read_text(env, "DATABASE_URL", f"sqlite:///{home / 'speculoos.db'}"),
        redis_url=read_text(env, "REDIS_URL", f"redis+socket://{_run_dir(home) / 'redis.sock'}"),
        inference_url=read_text(env, "SPECULOOS_INFERENCE_URL", inference_url),
        inference_token=read_text(env, "SPECULOOS_INFERENCE_TOKEN") or _stored_token(home),
        hf_token=read_text(env, "HF_TOKEN"),
        endpoints=_records(home / "settings.toml", "endpoints", Endpoint, check_endpoint),
        state_servers=_records(home / "settings.toml", "hidden_states", HiddenStatesServer, _check_state_server),
        **read,
    )


def home_of(env: Mapping[str, str]) -> Path:
    """The home folder from SPECULOOS_HOME, or the default."""
    return Path(read_text(env, "SPECULOOS_HOME") or default_home()).expanduser().resolve()


def default_home() -> Path:
    """`data/` of the git clone if running from one, else the user's data folder."""
    if (PROJECT_ROOT / "pyproject.toml").exists():
        return PROJECT_ROOT / "data"
    return Path(platformdirs.user_data_dir("speculoos"))


def _run_dir(home: Path) -> Path:
    tag = hashlib.sha256(str(home).encode()).hexdigest()[:10]
    return Path("/tmp") / f"speculoos-{os.getuid()}-{tag}"


def _stored_token(home: Path) -> str:
    try:
        return (home / INFERENCE_TOKEN).read_text().strip()
    except OSError:
        return ""


def _published_hosts(address: str, port: int) -> list[str]:
    """Host headers of requests to a published port. `0.0.0.0` and `::` are not host names."""
    if not port:
        return []
    names = dict.fromkeys((*LOOPBACK, *([address] if address.strip("0.:") else [])))
    return [f"[{name}]:{port}" if ":" in name else f"{name}:{port}" for name in names]


def _records(path: Path, section: str, kind: Any, check: Callable[[Any, str], None]) -> dict[str, Any]:
    """The validated [section.NAME] tables of a TOML file as `kind` objects; {} if the file does not exist."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8")).get(section, {})
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}).") from None
    except ValueError as error:  # invalid TOML or UTF-8
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
    """Raise BadInput for an invalid endpoint; `where` is the start of the message."""
    _check_texts(endpoint, where)
    urls = [endpoint.url] if isinstance(endpoint.url, str) else endpoint.url
    if not isinstance(urls, list) or not urls or not all(isinstance(url, str) for url in urls):
        raise BadInput(f"{where} url: expected a text in quotes, or a list of them, got {endpoint.url!r}.")
    for url in urls:
        _check_url(url, where)
    _check_numbers(endpoint, where, ("concurrency", 1), ("retries", 0), ("requests_per_minute", 0))


def _check_state_server(server: HiddenStatesServer, where: str) -> None:
    _check_texts(server, where)
    if not isinstance(server.url, str):
        raise BadInput(f"{where} url: expected a text in quotes, got {server.url!r}.")
    _check_url(server.url, where)
    if server.kind not in HIDDEN_STATES_PROTOCOLS:
        raise BadInput(f"{where} kind: expected one of {', '.join(HIDDEN_STATES_PROTOCOLS)}, got {server.kind!r}.")
    if server.name == "stored":
        raise BadInput(f"{where}: “stored” is reserved for stored hidden states without a server; choose another name.")
    _check_numbers(server, where, ("concurrency", 1))


def _check_texts(record: Endpoint | HiddenStatesServer, where: str) -> None:
    for key in ("key_env", "model"):
        if not isinstance(value := getattr(record, key), str):
            raise BadInput(f"{where} {key}: expected a text in quotes, got {value!r}.")


def _check_url(url: str, where: str) -> None:
    if not url.startswith(("http://", "https://")):
        raise BadInput(f"{where} url: expected http://… or https://…, got {url!r}.")


def _check_numbers(record: Endpoint | HiddenStatesServer, where: str, *numbers: tuple[str, int]) -> None:
    for key, least in numbers:
        if type(value := getattr(record, key)) is not int or value < least:
            raise BadInput(f"{where} {key}: expected a whole number, {least} or more, got {value!r}.")
    if type(record.timeout) not in (int, float) or not 0 < record.timeout < math.inf:
        raise BadInput(f"{where} timeout: expected seconds, got {record.timeout!r}.")
