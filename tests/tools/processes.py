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
