"""Which process is which: host, boot, pid and start time together name one process for ever; a pid alone does not."""

import contextlib
import functools
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@functools.cache
def host() -> str:
    return socket.gethostname()


@functools.cache
def boot_id() -> str:
    """Changes with every start of the machine."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))


def identity(pid: int) -> dict[str, Any]:
    """What `is_alive` needs to recognise this process again. Raises psutil.NoSuchProcess."""
    return {"host": host(), "boot_id": boot_id(), "pid": pid, "started": psutil.Process(pid).create_time()}


def owner(pid: int | None = None) -> str:
    """One line that names a worker process in a job's row: host/boot/pid/start."""
    who = identity(pid or os.getpid())
    return f"{who['host'][:80]}/{who['boot_id']}/{who['pid']}/{who['started']}"


def owner_is_dead(text: str) -> bool:
    """True only when the named worker ran on this host and is certainly gone; others are judged by their lease."""
    try:
        name, boot, pid, started = text.rsplit("/", 3)
        who = {
            "host": host() if name == host()[:80] else "",
            "boot_id": boot,
            "pid": int(pid),
            "started": float(started),
        }
    except ValueError:
        return False
    return who["host"] == host() and not is_alive(who)


def is_alive(who: dict[str, Any]) -> bool:
    """Whether exactly this process still runs on this host: host, boot id, pid and start time must all match."""
    if who.get("host") != host() or who.get("boot_id") != boot_id():
        return False
    try:
        process = psutil.Process(who["pid"])
        same = abs(process.create_time() - who["started"]) < 0.05
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.NoSuchProcess, KeyError):
        return False


def end_group(who: dict[str, Any], patience: float) -> bool:
    """End a process and its group, gently and after `patience` seconds by force; False when it was gone already.

    The process leads its own group and session, so nothing but its own children is touched.
    """
    if not is_alive(who):
        return False
    signal_group(who["pid"], signal.SIGTERM)
    deadline = time.monotonic() + patience
    while is_alive(who) and time.monotonic() < deadline:
        time.sleep(0.05)
    signal_group(who["pid"], signal.SIGKILL)
    while is_alive(who) and time.monotonic() < deadline + 10:
        time.sleep(0.05)
    return True


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the group led by `pid`; no error when it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
