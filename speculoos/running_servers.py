"""Servers that jobs of this machine run: each is an endpoint while its job runs.

A job writes `servers/NAME.json` of the home and holds a lock on the file. The kernel releases the lock when the process
ends, however it ends, so a file without a lock is that of an ended server. Imports no other package.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FOLDER = "servers"


@contextmanager
def announce(home: Path, name: str, values: dict[str, Any]) -> Iterator[None]:
    """Announce the running server `name` with JSON `values` until the block ends."""
    path = home / FOLDER / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".new")
    with temporary.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # moves with the file
        json.dump(values, file)
        file.flush()
        temporary.replace(path)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running(home: Path) -> dict[str, dict[str, Any]]:
    """{name: values} of the servers that run on this machine."""
    servers = {}
    for path in sorted((home / FOLDER).glob("*.json")):
        with suppress(OSError, ValueError), path.open(encoding="utf-8") as file:
            if _is_locked(file):
                servers[path.stem] = json.load(file)
    return servers


def by_job(home: Path) -> dict[str, dict[str, Any]]:
    """{id of the job: values} of the servers that run on this machine, each with its name."""
    return {values["job"]: {**values, "name": name} for name, values in running(home).items()}


def _is_locked(file: Any) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(file, fcntl.LOCK_UN)
    return False
