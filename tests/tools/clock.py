"""A time of day that drills can step for real processes, C code and /proc included, without touching the machine's.

Two things tell a process the time: its C library (a shim in front of it reads an offset), and the date of the
machine's start in /proc/stat (a file bound over it in a mount namespace of its own). The kernel moves both together.
"""

import shutil
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("clock_shim.c")
BIND = 'mount --bind "$0" /proc/stat && exec "$@"'


class Clock:
    """The steppable clock of the processes started with `command(...)` and `environment`."""

    def __init__(self, folder: Path):
        self.ahead = 0.0
        self._offset, self._stat, shim = folder / "offset", folder / "stat", folder / "clock_shim.so"
        self._start = Path("/proc/stat").read_text()
        compiled = ["cc", "-shared", "-fPIC", "-O2", "-o", str(shim), str(SOURCE), "-lm"]
        subprocess.run(compiled, check=True, capture_output=True)
        self.step(0.0)
        self.environment = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET": str(self._offset)}

    def step(self, seconds: float) -> None:
        """Put the time of day forward by so many seconds from now, or back."""
        self.ahead += seconds
        lines = self._start.splitlines()
        moved = [
            f"btime {round(int(line.split()[1]) + self.ahead)}" if line.startswith("btime") else line for line in lines
        ]
        _overwrite(self._stat, ("\n".join(moved) + "\n").encode())
        _overwrite(self._offset, struct.pack("d", self.ahead))

    def command(self, words: list[str]) -> list[str]:
        """`words`, to be run where /proc/stat is ours."""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", BIND, str(self._stat), *words]


def missing() -> str:
    """Why no clock can be stepped here; empty when it can."""
    absent = [name for name in ("cc", "unshare", "mount") if not shutil.which(name)]
    if absent:
        return f"needs {', '.join(absent)}; on Debian: apt-get install gcc libc6-dev util-linux mount"
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", "mount --bind /proc/uptime /proc/stat"])
    return "only root may have a /proc/stat of its own" if tried.returncode else ""


def _overwrite(path: Path, content: bytes) -> None:
    """In place: the file is mapped and bound, so it must stay the same one."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(content)
        file.truncate()
