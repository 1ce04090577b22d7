"""What tests ask of processes that are not their children."""

import os
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import psutil


def gone(pid: int) -> bool:
    """Whether it ended, also where nobody has reaped it yet; one that ends while we look is gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def freeze(home: Path, worker: int, child: int) -> None:
    """A worker and its child's process group stand still, and neither in a transaction: it would keep SQLite's one file
    locked for everybody."""
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
    """The processes of a training by rank: those that its fork server forked, in their order."""
    servers = [p for p in psutil.Process(child).children(recursive=True) if "forkserver" in " ".join(p.cmdline())]
    return [rank for server in servers for rank in sorted(server.children(), key=lambda each: each.pid)]


def is_listening_elsewhere(process: psutil.Process) -> bool:
    """Whether a process accepts connections from other machines."""
    listening = [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return any(each.laddr.ip not in ("127.0.0.1", "::1") for each in listening)
