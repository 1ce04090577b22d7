"""Atomic writes of files, folders and secrets: temporary name, fsync, rename."""

import contextlib
import json
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from speculoos.private import apply_umask
from speculoos.settings import Settings


def portable_name(name: str) -> str:
    """A portable file name: other characters become dashes; "" if nothing is left."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")


@contextlib.contextmanager
def new_folder(target: str | Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder beside `target` that is renamed to `target` on success and deleted on error.

    With `replace`, an existing `target` is replaced; otherwise a `target` that was created meanwhile is kept.
    """
    target = Path(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    building = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    old = building.with_name(f"{building.name}.old")
    try:
        yield building
        building.chmod(apply_umask(0o777))  # mkdtemp ignores the umask
        _sync_folder(building)
        if replace and target.exists():
            target.rename(old)
        if not target.exists():
            building.rename(target)
    finally:
        for path in (building, old):
            shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def new_path(target: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `target` whose file is renamed to `target` on success."""
    target = Path(target)
    temporary = _temporary(target)
    try:
        yield temporary
        sync_file(temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_file(target: str | Path) -> Iterator[IO[str]]:
    """Yield an open text file that is renamed to `target` on success."""
    with new_path(target) as temporary, open(temporary, "w", encoding="utf-8") as handle:
        yield handle


@contextlib.contextmanager
def new_private_file(target: str | Path) -> Iterator[IO[bytes]]:
    """Yield an open binary file with mode 0600 that is renamed to `target` on success."""
    with new_path(target) as temporary, open(temporary, "wb", opener=_open_private) as handle:
        yield handle


def read_or_create_secret(path: Path, new: Callable[[], str]) -> str:
    """Read the secret in `path`, created by `new` with mode 0600 if missing; of concurrent calls, the first wins."""
    if not (path.exists() and path.read_text().strip()):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)  # it may exist but be empty
        temporary = _temporary(path)
        try:
            with open(temporary, "w", opener=_open_private) as handle:
                handle.write(new() + "\n")
            sync_file(temporary)
            with contextlib.suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    return path.read_text().strip()


def read_inference_token(settings: Settings) -> str:
    """The token with which programs of this home authenticate at the inference server, in home/secrets/inference-token;
    created at the first call."""
    return read_or_create_secret(settings.inference_token_file, lambda: secrets.token_urlsafe(32))


def _temporary(target: Path) -> Path:
    return target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def write_json(path: str | Path, value: Any) -> None:
    with new_file(path) as handle:
        json.dump(value, handle, ensure_ascii=False, indent=1)


def sync_file(path: Path) -> None:
    """fsync a file that a library wrote, so that its folder is not renamed before its content is on disk."""
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())


def total_bytes(path: Path) -> int:
    """Bytes of a file or of all files below a folder. Missing files count 0; symbolic links are not followed."""
    return sum(entry.st_size for entry in file_stats(path))


def file_stats(path: Path) -> Iterator[os.stat_result]:
    """Stat results of all files below `path`; symbolic links are not followed. One stat call per file."""
    try:
        if not path.is_dir() or path.is_symlink():
            yield path.lstat()
            return
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from file_stats(Path(entry.path))
                else:
                    yield entry.stat(follow_symlinks=False)
    except OSError:
        return


def _sync_folder(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            executable = path.stat().st_mode & 0o111
            path.chmod(apply_umask(0o666 | executable))  # safetensors uses mode 0600; images have other users
            sync_file(path)
