"""Identifies processes by machine, boot id, pid and start time, which is unique; a pid alone is reused.

On Linux the start time is in clock ticks since boot, which do not change when the system clock is set, unlike dates.
"""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil

from speculoos import machine

ATTEMPT = "SPECULOOS_ATTEMPT"
"""Environment variable with job and attempt (`id/number`), set in a child and inherited by its children."""
ZOMBIE = "Z"
STATE, START = 0, 19  # indices in /proc/PID/stat, counted after the process name in parentheses
KILL_TIMEOUT = 10.0  # seconds to wait for killed processes to disappear, also on a busy machine


def process_identity(pid: int) -> dict[str, Any]:
    """The identity of a process for `is_alive`. Raises psutil.NoSuchProcess."""
    boot = machine.boot_id()
    name, start = ("ticks", _stat(pid)[START]) if boot else ("started", psutil.Process(pid).create_time())
    return {"host": machine.machine_key(), "boot_id": boot, "pid": pid, name: start}


def worker_id(pid: int | None = None) -> str:
    """The identity of a worker process as stored in a job's row: machine/boot/pid/start."""
    worker = process_identity(pid or os.getpid())
    return f"{worker['host']}/{worker['boot_id']}/{worker['pid']}/{worker.get('ticks', worker.get('started'))}"


def worker_is_dead(text: str) -> bool:
    """True only if the worker ran on this machine and has ended; other workers are checked by their leases."""
    try:
        name, boot, pid, start = text.rsplit("/", 3)
        started = {"ticks": start} if start.isdigit() else {"started": float(start)}
        identity = {"host": name, "boot_id": boot, "pid": int(pid), **started}
    except ValueError:
        return False
    return identity["host"] == machine.machine_key() and not is_alive(identity)


def is_alive(identity: dict[str, Any]) -> bool:
    """Whether this process still runs on this machine: host, boot id, pid and start time must match."""
    if identity.get("host") != machine.machine_key() or identity.get("boot_id") != machine.boot_id():
        return False
    try:
        if "ticks" in identity:
            stat = _stat(identity["pid"])
            return stat[START] == str(identity["ticks"]) and stat[STATE] != ZOMBIE
        same = abs((process := psutil.Process(identity["pid"])).create_time() - identity["started"]) < 0.05
        return same and process.status() != psutil.STATUS_ZOMBIE  # old rows and systems other than Linux
    except (psutil.Error, KeyError):
        return False


def end_group(identity: dict[str, Any], kill_seconds: float) -> bool:
    """End a process and its group: SIGTERM, then SIGKILL after `kill_seconds`. False if it had already ended; its
    children that still run are then killed. The process leads its own group and session, so only its own children are
    affected."""
    if not is_alive(identity):
        _kill_orphans(identity)
        return False
    signal_group(identity["pid"], signal.SIGTERM)
    deadline = time.monotonic() + kill_seconds
    while is_alive(identity) and time.monotonic() < deadline:
        time.sleep(0.05)
    signal_group(identity["pid"], signal.SIGKILL)
    while is_alive(identity) and time.monotonic() < deadline + KILL_TIMEOUT:
        time.sleep(0.05)
    return True


def _kill_orphans(identity: dict[str, Any]) -> None:
    """Kill the group of a process that has ended. The kernel does not reuse a pid while its group exists: if there is a
    process with this pid, the group was empty before, and the new one is not touched."""
    here = identity.get("host") == machine.machine_key() and identity.get("boot_id") == machine.boot_id()
    if not here or "ticks" not in identity:
        return
    try:
        is_other = _stat(identity["pid"])[START] != str(identity["ticks"])  # the same start: a zombie
    except psutil.NoSuchProcess:
        is_other = False
    if not is_other:
        signal_group(identity["pid"], signal.SIGKILL)


def end_attempts(job_id: str, until: int, kill_seconds: float) -> list[int]:
    """End all processes on this machine of the job's attempts up to number `until`, also those outside of their group
    or without a row: SIGTERM, then SIGKILL after `kill_seconds`. Returns the pids of processes that survive this
    (blocked in the kernel, for example on a disk)."""
    processes = _processes_of(job_id, until)
    _signal(processes, signal.SIGTERM)
    psutil.wait_procs(processes, kill_seconds)
    deadline = time.monotonic() + KILL_TIMEOUT
    while processes and (processes := _processes_of(job_id, until)) and time.monotonic() < deadline:
        _signal(processes, signal.SIGKILL)
        psutil.wait_procs(processes, 0.5)
    return [process.pid for process in processes]


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the process group of `pid`; no error if it has ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _processes_of(job_id: str, until: int) -> list[psutil.Process]:
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, ValueError):
            job, _, attempt = process.environ().get(ATTEMPT, "").partition("/")
            if job == job_id and int(attempt) <= until and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat after the process name (any text). Raises psutil.NoSuchProcess."""
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        raise psutil.NoSuchProcess(pid) from None
