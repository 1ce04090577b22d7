"""A clock that tests can step in real processes: with this folder on PYTHONPATH, Python loads this file at its start.

The file named by TEST_CLOCK_FILE holds by how many seconds the time of day is ahead (or behind). As with the kernel,
the date of the machine's start moves along and the monotonic clock does not. (Stepping the machine's own clock would
step it for everyone, and Linux has no namespace for it.)
"""

import os
import time

import psutil._pslinux as linux

PATH = os.environ.get("TEST_CLOCK_FILE", "")


def ahead() -> float:
    try:
        with open(PATH) as file:
            return float(file.read() or 0)
    except OSError:
        return 0.0


true_time, true_time_ns, true_boot_time = time.time, time.time_ns, linux.boot_time
time.time = lambda: true_time() + ahead()
time.time_ns = lambda: true_time_ns() + int(ahead() * 10**9)
linux.boot_time = lambda: true_boot_time() + ahead()
