"""A clock that drills can step for real processes, including C code and /proc, without changing the machine's clock.

A process reads the time from its C library (a preloaded shim adds an offset) and the boot time from /proc/stat (another
file is mounted over it in a private mount namespace). The kernel moves both together, and so does this clock.
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
        compile_command = ["cc", "-shared", "-fPIC", "-O2", "-o", str(shim), str(SOURCE), "-lm"]
        subprocess.run(compile_command, check=True, capture_output=True)
        self.step(0.0)
        self.environment = {"LD_PRELOAD": str(shim), "CLOCK_OFFSET": str(self._offset)}

    def step(self, seconds: float) -> None:
        """Move the time of day forward by `seconds`, or back if they are negative."""
        self.ahead += seconds
        lines = self._start.splitlines()
        moved = [
            f"btime {round(int(line.split()[1]) + self.ahead)}" if line.startswith("btime") else line for line in lines
        ]
        _overwrite(self._stat, ("\n".join(moved) + "\n").encode())
        _overwrite(self._offset, struct.pack("d", self.ahead))

    def command(self, arguments: list[str]) -> list[str]:
        """The command `arguments`, run with this clock's /proc/stat."""
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", BIND, str(self._stat), *arguments]


def missing() -> str:
    """Why no clock can be stepped here; empty if it can."""
    absent = [name for name in ("cc", "unshare", "mount") if not shutil.which(name)]
    if absent:
        return f"needs {', '.join(absent)}; on Debian: apt-get install gcc libc6-dev util-linux mount"
    mounted = subprocess.run(["unshare", "--mount", "sh", "-c", "mount --bind /proc/uptime /proc/stat"])
    return "only root may have a /proc/stat of its own" if mounted.returncode else ""


def _overwrite(path: Path, content: bytes) -> None:
    """Write in place: the file is memory-mapped and bind-mounted, so its inode must stay."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(content)
        file.truncate()
