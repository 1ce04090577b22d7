"""`speculoos worker`: workers only, in addition to `speculoos up` or on another machine with access to the same Redis,
PostgreSQL and home folder or store (SPECULOOS_STORE)."""

import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from cli.launch.programs import worker_command
from ops import health
from ops.homes import open_home
from speculoos.errors import BadInput, Unavailable
from speculoos.private import restrict_permissions
from speculoos.settings import LOOPBACK, Settings
from tracking import db, revisions

RESTART_SECONDS = 3.0
"""Seconds before a worker that ended is restarted."""
STOP_TIMEOUT = 30.0
POLL_INTERVAL = 0.3
BROKER = "Set REDIS_URL to the Redis server that the pages use (redis://host:6379/0)."
DATABASE = "Set DATABASE_URL to the PostgreSQL server that the pages use; SQLite cannot be shared between machines."


def check_worker_setup(settings: Settings) -> None:
    """Raise BadInput or Unavailable when workers cannot run: broker or database are not shared or do not answer, or the
    database has another version. Migrates SQLite only; `speculoos up` migrates a server."""
    _check_shared(settings)
    broker = health.check(settings, ["broker"])["broker"]
    if not broker.ok:
        raise Unavailable(broker.detail, broker.hint)
    if _is_sqlite(settings):
        open_home(settings)
        return
    if (revision := db.revision(settings)) != revisions.head():
        message = f"The database is at migration {revision or 'none'}, these workers need {revisions.head()}."
        raise Unavailable(message, "Start `speculoos up` of this version on the server; it migrates the database.")
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    restrict_permissions(settings)


def run(queue: str, count: int, threads: int | None, devices: list[str]) -> int:
    """Run `count` worker processes for `queue` until stopped; a single one replaces this process. Devices are assigned
    round-robin."""
    command = list(worker_command(queue, threads))
    assigned = [{"SPECULOOS_DEVICE": devices[number % len(devices)]} if devices else {} for number in range(count)]
    if count == 1:
        os.execve(command[0], command, {**os.environ, **assigned[0]})

    def start(variables: dict[str, str]) -> psutil.Popen:
        """Start in a new session, so that Ctrl-C reaches only this process, which ends the children once."""
        return psutil.Popen(command, env={**os.environ, **variables}, start_new_session=True)

    children = [start(variables) for variables in assigned]
    try:
        while True:  # until Ctrl-C or TERM; the command line raises KeyboardInterrupt for both
            time.sleep(POLL_INTERVAL)
            for index, child in enumerate(children):
                if child.poll() is not None:
                    print(f"A worker ended (status {child.returncode}) and is restarted.", file=sys.stderr)
                    time.sleep(RESTART_SECONDS)
                    children[index] = start(assigned[index])
    except KeyboardInterrupt:
        return 0
    finally:
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.terminate()
        for child in psutil.wait_procs(children, STOP_TIMEOUT)[1]:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def _check_shared(settings: Settings) -> None:
    if settings.embedded_broker and not (settings.run_dir / "redis.sock").exists():
        raise BadInput(f"REDIS_URL is not set, and no `speculoos up` runs in {settings.home}.", BROKER)
    if not _is_sqlite(settings):
        return
    if not Path(db.database_url(settings).database or "").exists():
        raise BadInput(f"DATABASE_URL is not set, and there is no database in {settings.home}.", DATABASE)
    host = urlsplit(settings.redis_url).hostname
    if not settings.embedded_broker and host and host not in LOOPBACK:
        raise BadInput("REDIS_URL names another machine, but the database is a file of this one.", DATABASE)


def _is_sqlite(settings: Settings) -> bool:
    return db.database_url(settings).get_backend_name() == "sqlite"
