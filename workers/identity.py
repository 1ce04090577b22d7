"""Which process is which: machine, boot, pid and start together name one process for ever; a pid alone does not.

On Linux the start is counted in clock ticks since the machine's start, which no change of its clock touches. (Times of
day do change with it: a step of one second would make every living process another one.)
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
"""Environment variable that names job and attempt (`id/number`) in a child and in everything it starts."""
ZOMBIE, STATE, START = "Z", 0, 19
"""Places in /proc/PID/stat, counted after the name in brackets."""
LAST_PATIENCE = 10.0
"""Seconds in which even a busy machine ends what was killed."""


def identity(pid: int) -> dict[str, Any]:
    """What `is_alive` needs to recognise this process again; elsewhere than on Linux its start is a date. Raises
    psutil.NoSuchProcess."""
    boot = machine.boot_id()
    name, start = ("ticks", _stat(pid)[START]) if boot else ("started", _start_date(pid))
    return {"host": machine.host(), "boot_id": boot, "pid": pid, name: start}


def owner(pid: int | None = None) -> str:
    """One line that names a worker process in a job's row: machine/boot/pid/start."""
    who = identity(pid or os.getpid())
    return f"{who['host']}/{who['boot_id']}/{who['pid']}/{who.get('ticks', who.get('started'))}"


def owner_is_dead(text: str) -> bool:
    """True only when the named worker ran on this machine and is certainly gone; others are judged by their lease."""
    try:
        name, boot, pid, start = text.rsplit("/", 3)
        started = {"ticks": start} if start.isdigit() else {"started": float(start)}
        who = {"host": name, "boot_id": boot, "pid": int(pid), **started}
    except ValueError:
        return False
    return who["host"] == machine.host() and not is_alive(who)


def is_alive(who: dict[str, Any]) -> bool:
    """Whether exactly this process still runs on this machine: host, boot id, pid and start must all match."""
    if who.get("host") != machine.host() or who.get("boot_id") != machine.boot_id():
        return False
    try:
        if "ticks" in who:
            stat = _stat(who["pid"])
            return stat[START] == str(who["ticks"]) and stat[STATE] != ZOMBIE
        same = abs(_start_date(who["pid"]) - who["started"]) < 0.05  # rows of versions that kept dates, other systems
        return same and psutil.Process(who["pid"]).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, KeyError):
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
    while is_alive(who) and time.monotonic() < deadline + LAST_PATIENCE:
        time.sleep(0.05)
    return True


def end_attempts(job_id: str, until: int, patience: float) -> list[int]:
    """End every process on this machine that works for attempts of the job up to number `until`, also one that left
    its group, or that no row names. Gently and after `patience` seconds by force. Returns the pids of those that even
    so live on (they wait in the kernel, for a disk perhaps)."""
    processes = _working_for(job_id, until)
    _signal(processes, signal.SIGTERM)
    psutil.wait_procs(processes, patience)
    deadline = time.monotonic() + LAST_PATIENCE
    while processes and (processes := _working_for(job_id, until)) and time.monotonic() < deadline:
        _signal(processes, signal.SIGKILL)
        psutil.wait_procs(processes, 0.5)
    return [process.pid for process in processes]


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to the group led by `pid`; no error when it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _working_for(job_id: str, until: int) -> list[psutil.Process]:
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
    """The fields of /proc/PID/stat after the name, which may hold anything. Raises psutil.NoSuchProcess."""
    try:
        return Path(f"/proc/{int(pid)}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        raise psutil.NoSuchProcess(pid) from None


def _start_date(pid: int) -> float:
    return psutil.Process(pid).create_time()
