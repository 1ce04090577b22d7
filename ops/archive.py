"""The file a backup is: a tar, compressed if its name says so, written and read as a stream.

    speculoos-backup.json        what this is: format, revision of the tables, home, when
    rows/TABLE/00000.jsonl …     rows, pieces of a few MB
    home/…                       files, by their place in the home
    sums.txt                     sha256 of each of the above, for `sha256sum -c`
    end.json                     the end: without it the archive was cut off

A member may come twice (a file that changed while it was read); the later one counts.
"""

import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any

from speculoos.errors import BadInput

FORMAT = 1
HEAD, SUMS, END = "speculoos-backup.json", "sums.txt", "end.json"
ROWS, HOME = "rows", "home"
PLACES = ("models", "datasets", "checkpoints", "logs", "uploads", "secrets", "settings.toml", "starter-head")
"""What of a home may be in an archive."""
CHUNK = 1 << 20
ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz")
BROKEN = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class ArchiveWriter:
    """Writes the members. `sums` holds what was written, by name."""

    def __init__(self, out: IO[bytes]):
        self._sink = _Sink(out)
        self._tar = tarfile.open(fileobj=self._sink, mode="w|", copybufsize=CHUNK)  # noqa: SIM115 - closed by `end`
        self.sums: dict[str, str] = {}

    def data(self, name: str, content: bytes) -> None:
        """A member made in memory."""
        self._add(name, io.BytesIO(content), len(content), time.time())

    def file(self, name: str, handle: IO[bytes]) -> "Copied":
        """An open file as it is now."""
        facts = os.fstat(handle.fileno())
        return self._add(name, handle, facts.st_size, facts.st_mtime)

    def forget(self, prefix: str) -> None:
        """What was written under this prefix does not count."""
        for name in [name for name in self.sums if name.startswith(prefix)]:
            del self.sums[name]

    def end(self, **remarks: Any) -> None:
        """Sums and end; the archive is whole."""
        self.data(SUMS, "".join(f"{digest}  {name}\n" for name, digest in self.sums.items()).encode())
        self.data(END, json.dumps(remarks).encode())
        self._tar.close()

    def drop(self) -> None:
        """Give the archive up; nothing more is written, whenever tarfile closes."""
        self._sink.dropped = True

    def _add(self, name: str, handle: IO[bytes], size: int, changed: float) -> "Copied":
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, int(changed), 0o600
        copied = Copied(handle)
        self._tar.addfile(info, copied)  # type: ignore[arg-type] - it reads, and that is all
        self._tar.members.clear()  # tarfile would remember each one
        self.sums[name] = copied.digest.hexdigest()
        return copied


class _Sink:
    """What tarfile writes to."""

    def __init__(self, out: IO[bytes]):
        self._out, self.dropped = out, False

    def write(self, piece: bytes) -> int:
        return len(piece) if self.dropped else self._out.write(piece)


class Copied:
    """Reads as many bytes as are asked for: a file that became shorter (it was cut meanwhile) is filled up with zeros,
    and said to be `short`. `lines` counts the ends of lines."""

    def __init__(self, handle: IO[bytes]):
        self._handle = handle
        self.digest, self.short, self.lines = hashlib.sha256(), False, 0

    def read(self, size: int) -> bytes:
        piece = self._handle.read(size)
        if len(piece) < size:
            self.short = True
            piece += bytes(size - len(piece))
        self.digest.update(piece)
        self.lines += piece.count(b"\n")
        return piece


@contextmanager
def compressed(out: IO[bytes], name: str) -> Iterator[IO[bytes]]:
    """`out`, compressed as the ending of `name` says. Raises BadInput for an ending that says nothing."""
    if name.endswith((".gz", ".tgz")):
        with gzip.GzipFile(fileobj=out, mode="wb", filename="", compresslevel=4) as packed:
            yield packed
    elif name.endswith((".xz", ".txz")):
        with lzma.LZMAFile(out, "wb", preset=1) as packed:
            yield packed
    else:
        yield out


def check_ending(name: str) -> None:
    """Raises BadInput for a file name whose ending says neither tar nor how it is compressed."""
    if not name.endswith(ENDINGS):
        raise BadInput(f"{name}: a backup's name ends with one of {', '.join(ENDINGS)}.")


class Member:
    """One member of an archive that is being read: its checked name, and its content, once."""

    def __init__(self, name: str, content: IO[bytes], archive: str):
        self.name, self._content, self._archive = name, content, archive

    def json(self) -> Any:
        try:
            return json.loads(self._read())
        except ValueError as error:
            raise BadInput(f"{self.name} in the archive is no JSON ({error}).") from None

    def text(self) -> str:
        return self._read().decode()

    def copy_to(self, target: Path) -> str:
        """Write the content to a file of mode 0600 (folders are made); returns its sha256."""
        target.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with open(os.open(target, flags, 0o600), "wb") as out:
            while piece := self._read(CHUNK):
                digest.update(piece)
                out.write(piece)
        return digest.hexdigest()

    def _read(self, size: int = -1) -> bytes:
        with _translated(self._archive):
            return self._content.read(size)


def members(source: IO[bytes], name: str) -> Iterator[Member]:
    """The members in order, each checked before anything is done with it. Raises BadInput for what is no backup, is
    damaged, or holds what a backup never does (links, devices, places outside the home)."""
    with _translated(name), tarfile.open(fileobj=source, mode="r|*", copybufsize=CHUNK) as tar:
        for info in tar:
            tar.members.clear()
            checked = _check(info, name)
            content = tar.extractfile(info)
            assert content is not None
            yield Member(checked, content, name)


@contextmanager
def _translated(name: str) -> Iterator[None]:
    try:
        yield
    except BROKEN as error:
        raise BadInput(f"{name} is no backup, or it is damaged or cut off ({error}).") from None


def _check(info: tarfile.TarInfo, archive: str) -> str:
    parts = PurePosixPath(info.name).parts
    if not info.isreg() or info.issparse():
        raise BadInput(f"{archive}: {info.name!r} is not an ordinary file; nothing was taken from this archive.")
    known = info.name in (HEAD, SUMS, END) or (len(parts) == 3 and parts[0] == ROWS and info.name.endswith(".jsonl"))
    inside = len(parts) > 1 and parts[0] == HOME and parts[1] in PLACES and len(info.name) < 4000
    odd = info.name != "/".join(parts) or ".." in parts or any(ord(letter) < 32 for letter in info.name)
    if odd or not (known or inside):
        raise BadInput(f"{archive}: {info.name!r} is no place in a home; nothing was taken from this archive.")
    return info.name
