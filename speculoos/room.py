"""Is there room on this machine: disk where the home is, and memory? Below a floor jobs pause; and the reserve.

The reserve is a file in the home that is given up when the disk is full, so that rows which say so can be written; it
is made again when there is room.
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
DISK_MB, DISK_SHARE = 1024, 50
"""The floor of a disk where none is set: so many MB, or on a small disk this part of it."""
MEMORY_MB, MEMORY_SHARE = 512, 32
RESUME = 1.25
"""A pause ends when there is so many times the floor: jobs should not stop and go with every file."""
MEMORY_SECONDS = 5.0
"""Memory must have been short for so long: what a process takes for a moment pauses nothing."""
LOOK_SECONDS = 0.5
RESERVE = "reserve"
RESERVE_BYTES, RESERVE_LEAST, RESERVE_SHARE = 16 * MB, 5 * MB // 4, 200
"""On a small disk a part of it, but never less than what SQLite's log needs to be put back (tracking.db)."""
FULL_BYTES, FULL_SHARE = 8 * MB, 100
"""With less free space than this a disk counts as full: SQLite and the logs cannot go on with it."""
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Shortage:
    """What is short (`disk` or `memory`), and a sentence for people."""

    kind: str
    sentence: str

    @property
    def counts(self) -> bool:
        """Whether a pause is an attempt of its own: a job that eats the memory itself must not pause for ever."""
        return self.kind == "memory"

    @property
    def note(self) -> str:
        """What a paused job says."""
        return f"Paused: {self.sentence}"


def shortage(settings: Settings, times: float = 1.0) -> Shortage | None:
    """What is below `times` its floor on this machine now; None when there is room."""
    return disk_shortage(settings, times) or memory_shortage(settings, times)


def disk_shortage(settings: Settings, times: float = 1.0) -> Shortage | None:
    """The disk that holds the home, if its free space is below `times` the floor."""
    disk = shutil.disk_usage(existing(settings.home))
    floor = _floor(settings.min_disk_mb, DISK_MB, disk.total // DISK_SHARE)
    if disk.free >= floor * times:
        return None
    where = f"{_size(disk.free)} free on the disk that holds {settings.home}, the floor is {_size(floor)}"
    return Shortage("disk", f"{where}; make room and it goes on by itself")


def memory_shortage(settings: Settings, times: float = 1.0) -> Shortage | None:
    """Memory, if what is available to us is below `times` the floor."""
    available, total = memory()
    floor = _floor(settings.min_memory_mb, MEMORY_MB, total // MEMORY_SHARE)
    if available >= floor * times:
        return None
    where = f"{_size(available)} of memory available, the floor is {_size(floor)}"
    return Shortage("memory", f"{where}; end what takes it and it goes on by itself")


def memory() -> tuple[int, int]:
    """Bytes of memory available to this process, and in all; in a container those of its limit."""
    machine = psutil.virtual_memory()
    limit, used = _number(CGROUP / "memory.max"), _number(CGROUP / "memory.current")
    if limit is None or used is None or limit >= machine.total:
        return machine.available, machine.total
    return max(0, min(machine.available, limit - used + _cached())), limit


class RoomWatch:
    """Looks at most twice a second, for all threads of a worker; a pause ends a little above the floor it began at."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._lock = threading.Lock()
        self._lack: Shortage | None = None
        self._looked_at = self._short_since = 0.0

    def look(self) -> Shortage | None:
        """What is short now; None while work may go on."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at >= LOOK_SECONDS:
                self._looked_at = now
                self._lack = self._judge(now)
            return self._lack

    def _judge(self, now: float) -> Shortage | None:
        lack = shortage(self.settings, RESUME if self._lack else 1.0)
        if lack is None or lack.kind == "disk" or self._lack:
            self._short_since = 0.0
            return lack
        self._short_since = self._short_since or now
        return lack if now - self._short_since >= MEMORY_SECONDS else None


_watches: dict[tuple[object, ...], RoomWatch] = {}
_watches_lock = threading.Lock()


def watch(settings: Settings) -> RoomWatch:
    """This process's watch over the settings' home."""
    key = (settings.home, settings.min_disk_mb, settings.min_memory_mb)
    with _watches_lock:
        return _watches.setdefault(key, RoomWatch(settings))


def full(home: Path) -> bool:
    """Whether so little is free that nothing can be counted on to be written."""
    disk = shutil.disk_usage(existing(home))
    return disk.free < min(FULL_BYTES, disk.total // FULL_SHARE)


def keep_reserve(settings: Settings) -> bool:
    """Give the reserve up when the disk is full, make it (again) when there is room; whether it is there now."""
    file, home = settings.home / RESERVE, settings.home
    if not home.is_dir():
        return False
    if full(home):
        give_reserve_up(home)
        return False
    disk = shutil.disk_usage(home)
    size = min(RESERVE_BYTES, max(RESERVE_LEAST, disk.total // RESERVE_SHARE))
    if not file.exists() and disk.free > 4 * size:
        _fill(file, size)
    return file.exists()


def give_reserve_up(home: Path) -> None:
    """Free the reserve's room for what must be written now, where it was not given up before."""
    with suppress(OSError):
        (home / RESERVE).unlink()


def largest(home: Path) -> list[tuple[str, int]]:
    """The home's three largest things as (name, bytes), largest first."""
    weights = [(entry.name, _weight(Path(entry.path))) for entry in _entries(home) if entry.name != RESERVE]
    return sorted(weights, key=lambda item: -item[1])[:3]


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    return next(p for p in (path, *path.parents) if p.exists())


def _fill(file: Path, size: int) -> None:
    """Random bytes: a file of zeros takes no room on file systems that compress."""
    with suppress(OSError), new_private_file(file) as out:
        for start in range(0, size, MB):
            out.write(os.urandom(min(MB, size - start)))


def _entries(folder: Path) -> list[os.DirEntry]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _weight(path: Path) -> int:
    """Bytes on the disk of a file, or of a folder with all in it."""
    try:
        here = os.lstat(path).st_blocks * 512
    except OSError:
        return 0
    if path.is_symlink() or not path.is_dir():
        return here
    return here + sum(_weight(Path(entry.path)) for entry in _entries(path))


def _floor(setting: int | None, default_mb: int, share: int) -> int:
    return min(default_mb * MB, share) if setting is None else setting * MB


def _size(count: float) -> str:
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.{0 if count >= 1e7 else 1}f} MB"


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # cgroup version 1, no container, or the word `max`
        return None


def _cached() -> int:
    """Bytes of the container's memory that hold files which nothing needs now."""
    with suppress(OSError, ValueError, KeyError):
        figures = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return int(figures["inactive_file"])
    return 0
