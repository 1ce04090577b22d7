"""CPU share of other processes during a measurement, as speeds under different load are not comparable; priority."""

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

MIN_CPU_SECONDS = 0.2
"""Shortest measurement, in CPU seconds summed over all cores; the system counts in hundredths of a second."""
MAX_LOAD_DIFFERENCE = 0.2
"""Largest difference in CPU share between two comparable measurements (also ALIKE in app/static/trace.js)."""

NICE = 5  # niceness of threads that compute: about a third of the pages' CPU share when both are busy
TRIES = 20  # to change a session's niceness, 0.1 s apart


class OtherCpuLoad:
    """Counts from its creation."""

    def __init__(self) -> None:
        self._start = _cpu_seconds()

    def share(self) -> float | None:
        """Share of the CPU time since then that other processes used, 0 to 1; None if the interval was too short."""
        total, busy, own = (now - before for now, before in zip(_cpu_seconds(), self._start, strict=True))
        return round(min(max(busy - own, 0.0) / total, 1.0), 3) if total >= MIN_CPU_SECONDS else None


def are_loads_comparable(one: float | None, other: float | None) -> bool:
    """Whether measurements at these CPU shares are comparable; an unknown share counts as comparable."""
    return one is None or other is None or abs(one - other) <= MAX_LOAD_DIFFERENCE


def _cpu_seconds() -> tuple[float, float, float]:
    """CPU seconds of all cores: total, busy, and used by this process."""
    times, own = psutil.cpu_times(), psutil.Process().cpu_times()
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # already included in user and nice
    total = sum(times) - guests
    return total, total - times.idle - getattr(times, "iowait", 0.0), own.user + own.system


def lower_priority(device: str) -> None:
    """Lower the priority of the calling thread, and of threads it starts, if it computes on the CPU.

    Serving a page takes many short time slices, each of which would wait for the slices of all computing threads.
    """
    if device == "cpu":
        os.nice(NICE)


def lower_session_priority(device: str) -> None:
    """Lower the priority of the session that this process leads, if it computes on the CPU.

    Kernels with `sched_autogroup_enabled` schedule sessions as groups, and count the niceness of a thread within its
    session only: beside a training with two threads on two cores, chats had a tenth of their speed, now about half.
    """
    if device != "cpu" or os.getsid(0) != os.getpid():
        return
    with suppress(OSError):  # another kernel
        for _ in range(TRIES):
            with suppress(BlockingIOError):  # unless root does it, 100 ms must have passed since a session was changed
                Path("/proc/self/autogroup").write_text(str(NICE))
                return
            time.sleep(0.1)
