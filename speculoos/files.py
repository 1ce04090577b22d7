"""Writing so that a reader sees a whole file or folder, or none: temporary name, fsync, rename. Secrets too."""

import contextlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from speculoos.private import allowed


def plain_name(name: str) -> str:
    """What of a name every system takes as the name of a file, other signs as dashes; "" where nothing is left."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")


@contextlib.contextmanager
def new_folder(target: str | Path, replace: bool = False) -> Iterator[Path]:
    """A temporary folder beside `target` that takes its name when the block ends well, and goes when it does not.

    With `replace`, an older `target` gives way; without, one that appeared meanwhile is kept.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    old = building.with_name(f"{building.name}.old")
    try:
        yield building
        building.chmod(allowed(0o777))  # mkdtemp made it for its owner alone, whatever the umask says
        _settle(building)
        if replace and target.exists():
            target.rename(old)
        if not target.exists():
            building.rename(target)
    finally:
        for left in (building, old):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def new_path(target: str | Path) -> Iterator[Path]:
    """A temporary name beside `target` for a file that becomes `target` when the block ends well."""
    target = Path(target)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_file(target: str | Path) -> Iterator[IO[str]]:
    """A text file that becomes `target` when the block ends well."""
    with new_path(target) as temporary, open(temporary, "w", encoding="utf-8") as handle:
        yield handle


@contextlib.contextmanager
def new_private_file(target: str | Path) -> Iterator[IO[bytes]]:
    """A file for its owner alone that becomes `target` when the block ends well."""
    with new_path(target) as temporary, open(temporary, "wb", opener=_private) as handle:
        yield handle


def secret(path: Path, new: Callable[[], str]) -> str:
    """The secret in `path`; `new` makes one for its owner alone where there is none yet, and who is first wins."""
    if not (path.exists() and path.read_text().strip()):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # an empty one
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with open(temporary, "w", opener=_private) as handle:
                handle.write(new() + "\n")
            sync(temporary)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path.read_text().strip()


def link_or_copy(source: Path, target: Path) -> None:
    """`target` is whole or not there, and shares the room of `source` where the disk knows links: neither may be
    written into afterwards, only replaced."""
    with new_path(target) as temporary:
        try:
            os.link(source, temporary)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, temporary)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as JSON in one go."""
    with new_file(path) as handle:
        json.dump(value, handle, ensure_ascii=False, indent=1)


def sync(path: Path) -> None:
    """Wait until the disk has a file that a library wrote: a folder renamed into place must not outlive its weights."""
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; what is not there, or vanishes meanwhile, counts nothing. Links
    are not followed."""
    return sum(entry.st_size for entry in stats_of(path))


def stats_of(path: Path) -> Iterator[os.stat_result]:
    """Of every file below, without following links. Quick: one look at a file."""
    try:
        if not path.is_dir() or path.is_symlink():
            yield path.lstat()
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from stats_of(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False)
    except OSError:
        return


def _settle(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(allowed(0o666))  # safetensors writes for its owner alone; an image's other users must read it
            sync(path)
