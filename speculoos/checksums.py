"""sha256 checksums of files, cached by size, modification time and inode, and compared with a folder's SHA256SUMS file.

Any write changes the modification time, so the checksum is computed again. Silent corruption by a failing disk does not
change it; `speculoos verify` therefore recomputes every checksum.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from speculoos.errors import Damaged
from speculoos.files import new_file
from speculoos.settings import Settings

CHECKSUM_FILE = "SHA256SUMS"
FILE = "sums.json"  # cache file in the home folder: {key: checksum with size, mtime and inode of its files}


_memory: dict[str, Any] = {}


class ChecksumCache:
    """Checksums cached in `file` (None: in this process). With `anew` every checksum is recomputed and stored."""

    def __init__(self, file: Path | None = None, anew: bool = False):
        self.file, self.anew = file, anew

    @classmethod
    def of(cls, settings: Settings, anew: bool = False) -> "ChecksumCache":
        """The cache of a home folder."""
        return cls(settings.home / FILE, anew)

    def of_file(self, path: Path) -> str:
        """sha256 of a file's bytes. Raises OSError if it cannot be read."""
        return self.remembered(f"file:{path.absolute()}", [path], lambda: file_sha256(path))

    def remembered(self, key: str, files: Sequence[Path], take: Callable[[], str]) -> str:
        """The cached result of `take()` for `files` if they are unchanged, else a new one, which is cached."""
        stamps = [[stat.st_size, stat.st_mtime_ns, stat.st_ino] for stat in map(os.stat, files)]
        entry = self._read().get(key)
        if not self.anew and entry and entry["stamps"] == stamps:
            return entry["sum"]
        checksum = take()
        self._write(key, {"stamps": stamps, "files": [str(path.absolute()) for path in files], "sum": checksum})
        return checksum

    def _read(self) -> dict[str, Any]:
        if self.file is None:
            return _memory
        with suppress(OSError, ValueError, TypeError):
            return dict(json.loads(self.file.read_text(encoding="utf-8")))
        return {}

    def _write(self, key: str, entry: dict[str, Any]) -> None:
        """Store an entry, best effort: one that is not written, or lost by concurrent writers, is recomputed later."""
        if self.file is None:
            _memory[key] = entry
            return
        entries = {k: v for k, v in self._read().items() if all(map(os.path.exists, v.get("files", ())))}
        with suppress(OSError), new_file(self.file) as out:
            json.dump({**entries, key: entry}, out, indent=0)


def file_sha256(path: str | Path) -> str:
    """sha256 of a file's bytes, as hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_checksums(folder: str | Path) -> dict[str, str]:
    """{file name: sha256} from a folder's SHA256SUMS, {} without one. Raises Damaged if that file is unreadable."""
    path = Path(folder) / CHECKSUM_FILE
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Damaged(f"{path} cannot be read ({error}).") from None
    digests = {}
    for number, line in enumerate(lines, 1):
        digest, _, name = line.partition(" ")
        name = name.strip().lstrip("*")
        if len(digest) != 64 or Path(name).name != name or not name:
            raise Damaged(f"{path}, line {number}: expected a sha256 and the name of a file beside it.")
        digests[name] = digest
    return digests


def find_changed_files(folder: str | Path, cache: ChecksumCache | None = None) -> dict[str, str]:
    """{file name: problem} of the files listed in a folder's SHA256SUMS; empty if all files match."""
    folder, cache = Path(folder), cache or ChecksumCache()
    try:
        expected = read_checksums(folder)
    except Damaged as error:
        return {CHECKSUM_FILE: str(error).removeprefix(f"{folder}/{CHECKSUM_FILE}").strip(" .,")}
    problems = {}
    for name, digest in expected.items():
        try:
            if cache.of_file(folder / name) != digest:
                problems[name] = f"is damaged (its sha256 differs from {CHECKSUM_FILE})"
        except FileNotFoundError:
            problems[name] = "is missing"
        except OSError as error:
            problems[name] = f"cannot be read ({error.strerror})"
    return problems


def format_checksums(sums: dict[str, str]) -> str:
    """Text of a SHA256SUMS file that `sha256sum -c` accepts, from {file name: sha256}."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def checksums_text(files: Iterable[Path]) -> str:
    """Text of a SHA256SUMS file for these files; recomputes their checksums."""
    return format_checksums({path.name: file_sha256(path) for path in files})
