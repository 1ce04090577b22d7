"""Health checks, one per part of the home. Each returns a description, or raises a SpeculoosError with a hint.

`doctor` shows them all; `up` waits for those of the processes it started.
"""

import os
import platform
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import psutil
import redis
from packaging.requirements import Requirement

from models.starter import starter_path
from ops import verify
from speculoos import machine, resources
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.people import access_warning
from speculoos.settings import PROJECT_ROOT, Settings
from speculoos.store import open_store
from tracking import db, processes, revisions

MIN_DISK_GB, MIN_MEMORY_GB = 2.0, 1.5
START = "Start everything with `speculoos up` (or `make up`)."
RESUME = "Jobs resume automatically; "


@dataclass(frozen=True)
class HealthPart:
    """Result of one check; `hint` says what to do when it is not ok."""

    ok: bool
    detail: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "hint" or value}


def check(settings: Settings, names: Iterable[str] = ()) -> dict[str, HealthPart]:
    """The result of each check by name; all, or those in `names`."""
    return {name: _part(CHECKS[name], settings) for name in (names or CHECKS)}


def _part(probe: Callable[[Settings], str], settings: Settings) -> HealthPart:
    try:
        return HealthPart(True, probe(settings))
    except SpeculoosError as error:
        return HealthPart(False, str(error), error.hint)
    except Exception as error:  # a broken part must not hide the others
        first = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return HealthPart(False, first, "See the logs in the home folder.")


def _packages(settings: Settings) -> str:
    """Every requirement of pyproject.toml (or the installed metadata) is installed in a version that is new enough."""
    project, wrong = PROJECT_ROOT / "pyproject.toml", []
    listed = tomllib.loads(project.read_text())["project"]["dependencies"] if project.exists() else None
    for requirement in map(Requirement, listed or metadata.requires("speculoos") or []):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            version = next((each.version for each in metadata.distributions(name=requirement.name)), "missing")
            if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
                wrong.append(f"{requirement.name}{requirement.specifier} (is {version})")
    if wrong:
        raise Unavailable(f"Not installed as required: {', '.join(wrong)}.", "Run `make install`.")
    return f"torch {metadata.version('torch')}, gradio {metadata.version('gradio')}"


def _database(settings: Settings) -> str:
    revision = db.revision(settings)
    if revision != (head := revisions.head()):
        raise Unavailable(f"Migration {revision or 'none'}, expected {head}.", "`speculoos up` migrates the database.")
    return f"{db.engine(settings).dialect.name}, migration {revision}"


def _broker(settings: Settings) -> str:
    if settings.embedded_broker and not (settings.run_dir / "redis.sock").exists():
        raise Unavailable("The embedded broker is not running.", START)
    try:
        with broker_client(settings) as client:
            info = client.info("server")
    except redis.RedisError as error:
        hint = START if settings.embedded_broker else "Check REDIS_URL and the server behind it."
        raise Unavailable(f"The broker does not respond ({error}).", hint) from None
    kind = "embedded" if settings.embedded_broker else "REDIS_URL"
    return f"{kind}, {info.get('server_name', 'redis')} {info.get('valkey_version', info.get('redis_version', ''))}"


def broker_client(settings: Settings) -> redis.Redis:
    """A redis client for the broker; Celery's `redis+socket://…?virtual_host=` is the client's `unix://…?db=`."""
    url = settings.redis_url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=", 1)
    return redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3)


def _store(settings: Settings) -> str:
    if (store := open_store(settings.store)) is None:
        return "none; files are only in the home"
    store.read("doctor")  # needs address, keys and bucket
    return f"{store.url} responds"


def _process(name: str, what: str) -> Callable[[Settings], str]:
    """A process with a heartbeat in the database; on this machine its pid must exist too."""

    def probe(settings: Settings) -> str:
        with db.reading(settings) as session:
            keys = [row.key for row in processes.alive(session, name)]
        alive = [key.removeprefix("process:") for key in keys if exists(key, settings.home)]
        if not alive:
            raise Unavailable(f"{what} is not running.", START)
        return f"{len(alive)} alive: {', '.join(alive)}"

    return probe


def exists(key: str, home: Path) -> bool:
    """Whether the process `process:<name>@<machine>:<pid>` exists; true for other machines."""
    host, _, pid = key.rpartition("@")[2].rpartition(":")
    return host != machine.machine_key(home) or psutil.pid_exists(int(pid))


def _web(settings: Settings) -> str:
    host = settings.host if settings.host not in ("0.0.0.0", "::") else "127.0.0.1"
    return _healthz(f"http://{f'[{host}]' if ':' in host else host}:{settings.port}", "the pages")


def _healthz(url: str, what: str) -> str:
    try:  # loading certificates takes 17 ms, and most of these addresses are plain http
        address = f"{url.rstrip('/')}/healthz"
        response = httpx.get(address, timeout=5.0, trust_env=False, verify=url.startswith("https:"))
    except httpx.HTTPError as error:
        raise Unavailable(f"{url}: {what} cannot be reached ({type(error).__name__}).", START) from None
    if response.status_code != 200:
        raise Unavailable(f"{url}/healthz answered {response.status_code}.", "See web.log and inference.log.")
    return url


def _access(settings: Settings) -> str:
    """Who can open the pages. Open loopback is allowed, with a warning if the machine has other user accounts."""
    if settings.password:
        return "protected by the password"
    if not settings.is_loopback:
        raise Unavailable(f"{settings.host} is open to other machines without a password.", "Set SPECULOOS_PASSWORD.")
    if settings.requires_login:
        return "protected by links of `speculoos login-link`"
    return access_warning(settings) or "open on this machine, which has no other user accounts"


def _disk(settings: Settings) -> str:
    folder = resources.nearest_existing(settings.home)
    free = shutil.disk_usage(folder).free / 1e9
    if not os.access(folder, os.W_OK):
        raise Unavailable(f"{folder} cannot be written to.", "Set SPECULOOS_HOME to a folder of yours.")
    if shortage := resources.disk_shortage(settings):
        raise Unavailable(f"{shortage.note}.", f"{RESUME}SPECULOOS_MIN_DISK_MB sets the minimum.")
    if free < MIN_DISK_GB:
        raise Unavailable(f"{free:.1f} GB free in {folder}.", f"Free some space; {MIN_DISK_GB:g} GB are needed.")
    return f"{free:.1f} GB free in {settings.home}"


def _memory(settings: Settings) -> str:
    if shortage := resources.memory_shortage(settings):
        raise Unavailable(f"{shortage.note}.", f"{RESUME}SPECULOOS_MIN_MEMORY_MB sets the minimum.")
    available, total = resources.available_memory()
    free = available / 1e9
    if free < MIN_MEMORY_GB:
        raise Unavailable(f"{free:.1f} GB of memory available.", f"Close programs; {MIN_MEMORY_GB:g} GB are needed.")
    return f"{free:.1f} of {total / 1e9:.1f} GB available"


def _device(settings: Settings) -> str:
    import torch

    from models.base import lease_name

    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]
    cuda = [f"{torch.cuda.get_device_name(device)} ({lease_name(device)})" for device in devices]
    if settings.device.startswith("cuda") and not cuda:
        raise Unavailable(f"SPECULOOS_DEVICE is {settings.device}, but torch sees no CUDA device.", "Set it to auto.")
    if cuda and settings.device != "cpu":
        return "; ".join(f"cuda:{i} {name}" for i, name in enumerate(cuda))
    return f"cpu, {torch.get_num_threads()} threads"


def _starter(settings: Settings) -> str:
    folder = starter_path()
    if not (folder / "config.json").is_file():
        raise Unavailable("The starter model is not installed.", "Run `make install`.")
    return str(folder)


def _files(settings: Settings) -> str:
    """Files of models, checkpoints and datasets; only changed files are hashed again."""
    findings = verify.check(settings, anew=False)
    if damaged := [one for one in findings if one.damage]:
        more = f" And {len(damaged) - 1} more." if len(damaged) > 1 else ""
        raise Unavailable(f"Damaged: {damaged[0].sentence()}{more}", "`speculoos verify` names every damaged file.")
    return f"{len(findings)} models, drafts and datasets are undamaged (`speculoos verify` hashes all again)"


CHECKS: dict[str, Callable[[Settings], str]] = {
    "python": lambda settings: f"Python {platform.python_version()} at {sys.executable}",
    "packages": _packages,
    "database": _database,
    "broker": _broker,
    "worker-gpu": _process("worker-gpu", "A worker for the gpu queue"),
    "worker-io": _process("worker-io", "A worker for the io queue"),
    "reconciler": _process("reconciler", "The reconciler"),
    "web": _web,
    "inference": lambda settings: _healthz(settings.inference_url, "the inference server"),
    "access": _access,
    "disk": _disk,
    "memory": _memory,
    "device": _device,
    "starter": _starter,
    "files": _files,
    "store": _store,
}
