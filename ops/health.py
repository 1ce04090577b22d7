"""Is every part of this home well? One small check a part; each returns a few words or raises a SpeculoosError.

`doctor` shows them all; `up` waits for the ones it started.
"""

import os
import platform
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

import httpx
import psutil

from models.starter import starter_path
from speculoos import machine, room
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.people import access_warning
from speculoos.settings import PROJECT_ROOT, Settings
from speculoos.store import open_store

MIN_DISK_GB, MIN_MEMORY_GB = 2.0, 1.5
START = "Start everything with `speculoos up` (or `make up`)."
GO_ON = "Jobs go on by themselves; the Settings page or "


@dataclass(frozen=True)
class HealthPart:
    """How one part is: `detail` says what was found, `hint` what to do when it is not ok."""

    ok: bool
    detail: str
    hint: str = ""

    def to_json(self) -> dict[str, Any]:
        fields = asdict(self)
        return fields if self.hint else {k: v for k, v in fields.items() if k != "hint"}


def check(settings: Settings, names: Iterable[str] = ()) -> dict[str, HealthPart]:
    """Each part by name, all of them or the ones in `names`."""
    return {name: _part(CHECKS[name], settings) for name in (names or CHECKS)}


def _part(probe: Callable[[Settings], str], settings: Settings) -> HealthPart:
    try:
        return HealthPart(True, probe(settings))
    except SpeculoosError as error:
        return HealthPart(False, str(error), error.hint)
    except Exception as error:  # a broken part must not hide the others
        return HealthPart(
            False, f"{type(error).__name__}: {error}".splitlines()[0][:300], "See the logs in the home folder."
        )


def _python(settings: Settings) -> str:
    return f"Python {platform.python_version()} at {sys.executable}"


def _packages(settings: Settings) -> str:
    """Every requirement of pyproject.toml (or the installed metadata) is there in a version that is new enough."""
    from packaging.requirements import Requirement

    requirements = [Requirement(text) for text in _requirements()]
    requirements = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]
    wrong = [problem for r in requirements if (problem := _lacking(r.name, r.specifier))]
    if wrong:
        raise Unavailable(f"Not installed as required: {', '.join(wrong)}.", "Run `make install`.")
    return f"{len(requirements)} packages; torch {metadata.version('torch')}, gradio {metadata.version('gradio')}"


def _requirements() -> list[str]:
    project = PROJECT_ROOT / "pyproject.toml"
    if project.exists():
        return tomllib.loads(project.read_text())["project"]["dependencies"]
    return metadata.requires("speculoos") or []


@lru_cache(maxsize=100)
def _installed(name: str) -> str:
    """The version that this process began with."""
    return metadata.version(name)


def _lacking(name: str, specifier: Any) -> str:
    try:
        version = _installed(name)
    except metadata.PackageNotFoundError:
        return f"{name}{specifier}"
    return "" if specifier.contains(version, prereleases=True) else f"{name}{specifier} (is {version})"


def _database(settings: Settings) -> str:
    from tracking import db, revisions

    revision = db.revision(settings)
    if revision != (head := revisions.head()):
        raise Unavailable(f"Migration {revision or 'none'}, expected {head}.", "`speculoos up` migrates the database.")
    return f"{db.engine(settings).dialect.name}, migration {revision}"


def _broker(settings: Settings) -> str:
    import redis

    if settings.embedded_broker and not (settings.run_dir / "redis.sock").exists():
        raise Unavailable("The embedded broker is not running.", START)
    try:
        with broker_client(settings) as client:
            info = client.info("server")
    except redis.RedisError as error:
        hint = START if settings.embedded_broker else "Check REDIS_URL and the server behind it."
        raise Unavailable(f"The broker does not answer ({error}).", hint) from None
    kind = "embedded" if settings.embedded_broker else "REDIS_URL"
    return f"{kind}, {info.get('server_name', 'redis')} {info.get('valkey_version', info.get('redis_version', ''))}"


def broker_client(settings: Settings) -> Any:
    """A redis client for the broker; Celery's `redis+socket://…?virtual_host=` is the client's `unix://…?db=`."""
    import redis

    url = settings.redis_url.replace("redis+socket://", "unix://", 1).replace("virtual_host=", "db=", 1)
    return redis.Redis.from_url(url, socket_timeout=3, socket_connect_timeout=3)


def _store(settings: Settings) -> str:
    """Reading one small file shows address, keys and bucket at once."""
    if (store := open_store(settings.store)) is None:
        return "none; files lie in the home alone"
    store.read("doctor")
    return f"{store.url} answers"


def _process(name: str, what: str) -> Callable[[Settings], str]:
    """A process that beats as a row: alive when it did so lately and, on this machine, still has its process."""

    def probe(settings: Settings) -> str:
        from tracking import processes
        from tracking.db import reading

        with reading(settings) as session:
            alive = [
                row.key.removeprefix("process:")
                for row in processes.alive(session, name)
                if exists(row.key, settings.home)
            ]
        if not alive:
            raise Unavailable(f"{what} does not run.", START)
        return f"{len(alive)} alive: {', '.join(alive)}"

    return probe


def exists(key: str, home: Path) -> bool:
    """`process:<name>@<machine>:<pid>`: false when the machine is this one and the pid is gone."""
    host, _, pid = key.rpartition("@")[2].rpartition(":")
    return host != machine.machine_key(home) or psutil.pid_exists(int(pid))


def _web(settings: Settings) -> str:
    host = settings.host if settings.host not in ("0.0.0.0", "::") else "127.0.0.1"
    return _healthz(f"http://{f'[{host}]' if ':' in host else host}:{settings.port}", "the pages")


def _inference(settings: Settings) -> str:
    return _healthz(settings.inference_url, "the inference server")


def _healthz(url: str, what: str) -> str:
    try:
        # Certificates take 17 ms to load, and most of these addresses are plain http.
        response = httpx.get(
            f"{url.rstrip('/')}/healthz", timeout=5.0, trust_env=False, verify=url.startswith("https:")
        )
    except httpx.HTTPError as error:
        raise Unavailable(f"{url}: {what} cannot be reached ({type(error).__name__}).", START) from None
    if response.status_code != 200:
        raise Unavailable(f"{url}/healthz answered {response.status_code}.", "See web.log and inference.log.")
    return url


def _access(settings: Settings) -> str:
    """Who may open the pages. An open loopback is no fault, but worth a word where others have an account."""
    if settings.password:
        return "open to who knows the password"
    if not settings.is_loopback:
        raise Unavailable(f"{settings.host} is open to other machines, without a password.", "Set SPECULOOS_PASSWORD.")
    if settings.asks_login:
        return "open to who has a link of `speculoos login-link`"
    return access_warning(settings) or "open on this machine, where nobody else has an account"


def _disk(settings: Settings) -> str:
    folder = room.nearest_existing(settings.home)
    free = shutil.disk_usage(folder).free / 1e9
    if not os.access(folder, os.W_OK):
        raise Unavailable(f"{folder} cannot be written to.", "Set SPECULOOS_HOME to a folder of yours.")
    if short := room.disk_shortage(_in_force(settings)):
        raise Unavailable(f"{short.note}.", f"{GO_ON}SPECULOOS_MIN_DISK_MB sets the floor.")
    if free < MIN_DISK_GB:
        raise Unavailable(f"{free:.1f} GB free in {folder}.", f"Free some space; {MIN_DISK_GB:g} GB are needed.")
    return f"{free:.1f} GB free in {settings.home}"


def _in_force(settings: Settings) -> Settings:
    """With the limits that people chose."""
    from tracking import rules

    return rules.cached_settings(settings)


def _memory(settings: Settings) -> str:
    if short := room.memory_shortage(_in_force(settings)):
        raise Unavailable(f"{short.note}.", f"{GO_ON}SPECULOOS_MIN_MEMORY_MB sets the floor.")
    available, total = room.available_memory()
    free = available / 1e9
    if free < MIN_MEMORY_GB:
        raise Unavailable(f"{free:.1f} GB of memory available.", f"Close something; {MIN_MEMORY_GB:g} GB are needed.")
    return f"{free:.1f} of {total / 1e9:.1f} GB available"


def _device(settings: Settings) -> str:
    """What jobs will compute on; asks torch, in this process, because only a real look is worth showing."""
    import torch

    cuda = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
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
    """Files of models, checkpoints and data sets; sums are taken only of what changed since they were last."""
    from ops.verify import check as look

    findings = look(settings, anew=False)
    damaged = [one for one in findings if one.damage]
    if damaged:
        more = f" And {len(damaged) - 1} more." if len(damaged) > 1 else ""
        raise Unavailable(f"Damaged: {damaged[0].sentence()}{more}", "`speculoos verify` names every damaged file.")
    return f"{len(findings)} models, checkpoints and data sets are whole (`speculoos verify` takes every sum anew)"


CHECKS: dict[str, Callable[[Settings], str]] = {
    "python": _python,
    "packages": _packages,
    "database": _database,
    "broker": _broker,
    "worker-gpu": _process("worker-gpu", "A worker for the gpu queue"),
    "worker-io": _process("worker-io", "A worker for the io queue"),
    "reconciler": _process("reconciler", "The reconciler"),
    "web": _web,
    "inference": _inference,
    "access": _access,
    "disk": _disk,
    "memory": _memory,
    "device": _device,
    "starter": _starter,
    "files": _files,
    "store": _store,
}
