"""Checks and signals for processes that are not children of the test."""

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psutil


def gone(pid: int) -> bool:
    """Whether a process ended. Zombies, and processes that end during the check, count as ended."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def freeze(home: Path, worker: int, child: int) -> None:
    """Stop a worker and its child's process group outside any transaction, which would keep the SQLite database
    locked."""
    while True:
        os.kill(worker, signal.SIGSTOP)
        os.killpg(child, signal.SIGSTOP)
        try:
            with closing(sqlite3.connect(home / "speculoos.db", timeout=1)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                return
        except sqlite3.OperationalError:
            os.killpg(child, signal.SIGCONT)
            os.kill(worker, signal.SIGCONT)
            time.sleep(0.05)


def ranks(child: int) -> list[psutil.Process]:
    """The processes of a training by rank: those that its fork server forked, ordered by pid."""
    servers = [p for p in psutil.Process(child).children(recursive=True) if "forkserver" in " ".join(p.cmdline())]
    return [rank for server in servers for rank in sorted(server.children(), key=lambda process: process.pid)]


def is_listening_elsewhere(process: psutil.Process) -> bool:
    """Whether a process accepts connections from other machines."""
    listening = [conn for conn in process.net_connections("inet") if conn.status == psutil.CONN_LISTEN]
    return any(conn.laddr.ip not in ("127.0.0.1", "::1") for conn in listening)
