"""A clock that tests can step in real processes. Python loads this file at its start if this folder is on PYTHONPATH.

The file TEST_CLOCK_FILE contains the seconds by which the time of day is ahead (negative: behind). As with the kernel,
the boot time moves along and the monotonic clock does not. (Stepping the machine's clock would affect all processes,
and Linux has no namespace for it.)
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
