"""Free disk space and memory of this machine: below a minimum, jobs pause.

The reserve is a file in the home folder that is deleted when the disk is full, so that the database can still store
why jobs pause. It is created again once there is space.
"""

import os
import shutil
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from speculoos.files import new_private_file
from speculoos.settings import Settings

MB = 2**20
# Default minimums in MB, but at most 1/SHARE of the total space or memory.
DISK_MB, DISK_SHARE = 1024, 50
MEMORY_MB, MEMORY_SHARE = 512, 32
RESUME = 1.25  # a pause ends at this multiple of the minimum, so that jobs do not alternate between pause and work
MEMORY_SECONDS = 5.0  # memory must be short for this long before jobs pause: short peaks are ignored
RESERVE = "reserve"
# On a small disk the reserve is 1/RESERVE_SHARE of it, but enough for a checkpoint of SQLite's WAL (see tracking.db).
RESERVE_BYTES, RESERVE_LEAST, RESERVE_SHARE = 16 * MB, 5 * MB // 4, 200
# A disk with less free space than this counts as full: SQLite and log files need that much.
FULL_BYTES, FULL_SHARE = 8 * MB, 100
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class ResourceShortage:
    """A shortage of `disk` or `available_memory`, with a message for users."""

    kind: str
    sentence: str

    @property
    def uses_attempt(self) -> bool:
        """Whether a pause counts as an attempt: a job that causes the memory shortage must not pause forever."""
        return self.kind == "memory"

    @property
    def note(self) -> str:
        return f"Paused: {self.sentence}"


def find_shortage(settings: Settings, times: float = 1.0) -> ResourceShortage | None:
    """The current shortage below `times` the minimum, None if there is none."""
    return disk_shortage(settings, times) or memory_shortage(settings, times)


def disk_shortage(settings: Settings, times: float = 1.0) -> ResourceShortage | None:
    """A shortage of the home folder's disk, if its free space is below `times` the minimum."""
    disk = shutil.disk_usage(nearest_existing(settings.home))
    minimum = _minimum(settings.min_disk_mb, DISK_MB, disk.total // DISK_SHARE)
    if disk.free >= minimum * times:
        return None
    figures = f"{_size(disk.free)} free on the disk that holds {settings.home}, the minimum is {_size(minimum)}"
    return ResourceShortage("disk", f"{figures}; free some space and the job continues automatically")


def memory_shortage(settings: Settings, times: float = 1.0) -> ResourceShortage | None:
    """A memory shortage, if the memory available to this process is below `times` the minimum."""
    available, total = available_memory()
    minimum = _minimum(settings.min_memory_mb, MEMORY_MB, total // MEMORY_SHARE)
    if available >= minimum * times:
        return None
    figures = f"{_size(available)} of memory available, the minimum is {_size(minimum)}"
    return ResourceShortage("memory", f"{figures}; stop other programs and the job continues automatically")


def available_memory() -> tuple[int, int]:
    """(available, total) bytes of memory; in a container, those of its limit."""
    machine = psutil.virtual_memory()
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        statistics = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        cached = int(statistics["inactive_file"])  # reclaimable
    except (OSError, ValueError, KeyError):  # cgroup version 1, no container, or "max"
        return machine.available, machine.total
    if limit >= machine.total:
        return machine.available, machine.total
    return max(0, min(machine.available, limit - used + cached)), limit


class ResourceMonitor:
    """Checks for shortages; thread-safe. A shortage ends at RESUME times the minimum."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._lock = threading.Lock()
        self._shortage: ResourceShortage | None = None
        self._short_since = 0.0

    def shortage(self) -> ResourceShortage | None:
        """The current shortage, None while work may continue."""
        with self._lock:
            self._shortage = self._check()
            return self._shortage

    def _check(self) -> ResourceShortage | None:
        shortage = find_shortage(self.settings, RESUME if self._shortage else 1.0)
        if shortage is None or shortage.kind == "disk" or self._shortage:
            self._short_since = 0.0
            return shortage
        now = time.monotonic()
        self._short_since = self._short_since or now
        return shortage if now - self._short_since >= MEMORY_SECONDS else None


_monitors: dict[tuple[object, ...], ResourceMonitor] = {}


def resource_monitor(settings: Settings) -> ResourceMonitor:
    """The ResourceMonitor of this process for the settings' home folder and minimums."""
    key = (settings.home, settings.min_disk_mb, settings.min_memory_mb)
    return _monitors.setdefault(key, ResourceMonitor(settings))


def is_disk_full(home: Path) -> bool:
    """Whether so little space is free that writes are likely to fail."""
    disk = shutil.disk_usage(nearest_existing(home))
    return disk.free < min(FULL_BYTES, disk.total // FULL_SHARE)


def update_reserve(settings: Settings) -> bool:
    """Delete the reserve if the disk is full, create it if there is space. Returns whether it exists."""
    file, home = settings.home / RESERVE, settings.home
    if not home.is_dir():
        return False
    if is_disk_full(home):
        delete_reserve(home)
        return False
    disk = shutil.disk_usage(home)
    size = min(RESERVE_BYTES, max(RESERVE_LEAST, disk.total // RESERVE_SHARE))
    if not file.exists() and disk.free > 4 * size:
        _fill(file, size)
    return file.exists()


def delete_reserve(home: Path) -> None:
    """Delete the reserve, if it exists, to free space for urgent writes."""
    with suppress(OSError):
        (home / RESERVE).unlink()


def nearest_existing(path: Path) -> Path:
    """The path itself, or its nearest existing parent folder."""
    return next(p for p in (path, *path.parents) if p.exists())


def _fill(file: Path, size: int) -> None:
    """Write random bytes: zeros take no space on file systems with compression."""
    with suppress(OSError), new_private_file(file) as out:
        for start in range(0, size, MB):
            out.write(os.urandom(min(MB, size - start)))


def _minimum(setting: int | None, default_mb: int, share: int) -> int:
    return min(default_mb * MB, share) if setting is None else setting * MB


def _size(count: float) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.{0 if count >= 1e7 else 1}f} MB"
