"""Damages files as failing disks do: flips bytes in place, truncates files."""

import os
from pathlib import Path


def flip(path: Path, count: int = 512, at: float = 0.5) -> None:
    """Invert `count` bytes (fewer if the file is shorter) from the fraction `at` of the file on."""
    size = path.stat().st_size
    start = max(min(int(size * at), size - count), 0)
    with open(path, "r+b") as file:
        file.seek(start)
        old = file.read(count)
        file.seek(start)
        file.write(bytes(255 - byte for byte in old))


def cut(path: Path, part: float = 0.5) -> None:
    """Truncate a file to the fraction `part` of its size."""
    os.truncate(path, int(path.stat().st_size * part))
