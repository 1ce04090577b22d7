"""sha256 sums of files: taken once, remembered by size, time and inode, and compared with the SHA256SUMS of a folder.

A file that was changed by anything that writes has another time, so its sum is taken again. What a dying disk changes
in silence keeps its time: `speculoos verify` takes every sum anew.
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

SUMS = "SHA256SUMS"
FILE = "sums.json"
"""In the home: the sums that were taken, each with the stamps of its files."""


_memory: dict[str, Any] = {}


class Sums:
    """Sums remembered in `file` (None: by this process). With `anew` every sum is taken, and remembered, anew."""

    def __init__(self, file: Path | None = None, anew: bool = False):
        self.file, self.anew = file, anew

    @classmethod
    def of(cls, settings: Settings, anew: bool = False) -> "Sums":
        """Those of a home."""
        return cls(settings.home / FILE, anew)

    def of_file(self, path: Path) -> str:
        """sha256 of a file's bytes. Raises OSError when it cannot be read."""
        return self.remembered(f"file:{path.absolute()}", [path], lambda: file_sha256(path))

    def remembered(self, key: str, files: Sequence[Path], take: Callable[[], str]) -> str:
        """What `take()` gave when `files` were last as they are now; taken when they never were."""
        stamps = [_stamp(path) for path in files]
        known = self._read().get(key)
        if not self.anew and isinstance(known, dict) and known.get("stamps") == stamps:
            return str(known.get("sum"))
        taken = take()
        self._write(key, {"stamps": stamps, "files": [str(path.absolute()) for path in files], "sum": taken})
        return taken

    def _read(self) -> dict[str, Any]:
        if self.file is None:
            return _memory
        try:
            entries = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return entries if isinstance(entries, dict) else {}

    def _write(self, key: str, entry: dict[str, Any]) -> None:
        """Keep it, best effort: without a disk that takes it the sum is only taken again. Two writers at once may
        lose one entry, which costs as little."""
        if self.file is None:
            _memory[key] = entry
            return
        entries = {k: v for k, v in self._read().items() if _there(v)}
        with suppress(OSError), new_file(self.file) as out:
            json.dump({**entries, key: entry}, out, indent=0)


def file_sha256(path: str | Path) -> str:
    """sha256 of a file's bytes, as hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def listed(folder: str | Path) -> dict[str, str]:
    """{file name: sha256} from a folder's SHA256SUMS, {} when it has none. Raises Damaged when that cannot be read."""
    path = Path(folder) / SUMS
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


def differing(folder: str | Path, sums: Sums | None = None) -> dict[str, str]:
    """{file name: what is wrong with it} of the files in a folder's SHA256SUMS; empty when all is well."""
    folder, sums = Path(folder), sums or Sums()
    try:
        expected = listed(folder)
    except Damaged as error:
        return {SUMS: str(error).removeprefix(f"{folder}/{SUMS}").strip(" .,")}
    differences = {name: _wrong(folder / name, digest, sums) for name, digest in expected.items()}
    return {name: wrong for name, wrong in differences.items() if wrong}


def check(folder: str | Path, mend: str, sums: Sums | None = None) -> None:
    """Raise Damaged, naming the first file that is not as SHA256SUMS says; `mend` says what to do about it."""
    for name, wrong in differing(folder, sums).items():
        raise Damaged(f"{Path(folder) / name} {wrong}.", mend)


def lines(sums: dict[str, str]) -> str:
    """The text of a SHA256SUMS, as `sha256sum -c` takes it."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))


def of_files(files: Iterable[Path]) -> str:
    """The text of a SHA256SUMS of these files, taken now."""
    return lines({path.name: file_sha256(path) for path in files})


def _wrong(path: Path, digest: str, sums: Sums) -> str:
    try:
        return "" if sums.of_file(path) == digest else f"is damaged (its sha256 differs from {SUMS})"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _there(entry: Any) -> bool:
    return isinstance(entry, dict) and all(os.path.exists(path) for path in entry.get("files", ()))
