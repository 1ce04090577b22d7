"""A content-addressed file store shared by all machines: a folder, S3 or any fsspec file system (SPECULOOS_STORE).

    <prefix>/folders/<key>.json    {name: {"sha256", "bytes"}} of a folder's files; the key is the sha256 of this text
    <prefix>/files/<sha256>        the contents of the files, each once

Contents are written before the list, so a listed folder is complete. Partial uploads differ in size or checksum: they
are uploaded again, and downloads verify all checksums. A prefix is a path such as `checkpoints/<id>`, deleted as a
whole. Does not import torch.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from speculoos.checksums import file_sha256
from speculoos.errors import BadInput, Damaged, Unavailable, first_line
from speculoos.faults import disk_full
from speculoos.files import new_file, new_path

KEY_FILE = ".stored"
"""File in a synchronized local folder that holds its key; if the key matches, the store is not accessed."""
LOCAL = ("parts",)
"""Subfolders that are not uploaded, besides training checkpoints (`state-…`) and names that start with a dot."""
Checksum = Callable[[Path], str]
STORE_HINT = "Check SPECULOOS_STORE, the AWS_… variables and the server behind them; the job can be retried."


class StoreUnavailable(Unavailable):
    """The store is not reachable now."""


@dataclass(frozen=True)
class StoredFolder:
    """A folder in the store: its key and the total bytes of its files."""

    key: str
    bytes: int


class Store:
    """A store by its URL. All methods raise StoreUnavailable if it is not reachable."""

    def __init__(self, url: str):
        self.url = hide_credentials(url)
        options: dict[str, Any] = {"auto_mkdir": True} if url.startswith("file://") else {"use_listings_cache": False}
        with self._translated():
            import fsspec

            try:
                self._fs, root = fsspec.core.url_to_fs(url, **options)
            except ValueError as error:
                raise BadInput(f"SPECULOOS_STORE: {error}.") from None
        self._root = root.rstrip("/")

    def put_folder(self, prefix: str, folder: Path, checksum: Checksum = file_sha256) -> StoredFolder:
        """Upload a folder, or one file as a folder; files that exist in the store are not uploaded again."""
        files = files_to_upload(folder)
        listed = {name: {"sha256": checksum(path), "bytes": path.stat().st_size} for name, path in files.items()}
        for name, entry in listed.items():
            self.put_file(f"{prefix}/files/{entry['sha256']}", files[name])
        text = json.dumps(listed, sort_keys=True).encode()
        key = hashlib.sha256(text).hexdigest()
        self.write(f"{prefix}/folders/{key}.json", text)
        return StoredFolder(key, sum(entry["bytes"] for entry in listed.values()))

    def get_folder(self, prefix: str, key: str, target: Path) -> None:
        """Make `target` contain exactly the folder's files; each file is replaced atomically, the mark is written last.
        Files that are never uploaded stay. Raises Damaged for a file whose checksum differs."""
        listed = self.listed(prefix, key)
        target.mkdir(parents=True, exist_ok=True)
        (target / KEY_FILE).unlink(missing_ok=True)
        for name, entry in listed.items():
            source, path = f"{prefix}/files/{entry['sha256']}", target / name
            if path.is_file() and file_sha256(path) == entry["sha256"]:
                continue
            try:
                with new_path(path) as temporary:
                    self.get_file(source, temporary)
                    if file_sha256(temporary) != entry["sha256"]:
                        raise Damaged(f"{self.url}/{source} is damaged: its sha256 has changed since the upload.")
            except FileNotFoundError:
                raise Damaged(f"{self.url}/{source} is missing.") from None
        for name, path in files_to_upload(target).items():
            if name not in listed:
                path.unlink(missing_ok=True)
        write_key(target, key)

    def listed(self, prefix: str, key: str) -> dict[str, dict[str, Any]]:
        """{name: {sha256, bytes}} of a folder's files. Raises Damaged if the list is missing or has changed."""
        text = self.read(f"{prefix}/folders/{key}.json")
        if text is None or hashlib.sha256(text).hexdigest() != key:
            raise Damaged(f"The folder {key[:12]} is missing or damaged in {self.url}/{prefix}.")
        listed = json.loads(text)
        for name in listed:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise Damaged(f"{self.url}/{prefix} names a file outside of its folder ({name}).")
        return listed

    def put_file(self, name: str, path: Path) -> None:
        """Upload a file unless one of its size exists under this name: names are content hashes."""
        with self._translated():
            size = None
            with suppress(FileNotFoundError):
                size = int(self._fs.info(self._path(name), refresh=True)["size"])
            if size != path.stat().st_size:
                self._fs.put_file(str(path), self._path(name))

    def get_file(self, name: str, target: Path) -> None:
        """Download a file atomically. Raises FileNotFoundError if it does not exist."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_path(target) as temporary, self._translated(missing=True):
            self._fs.get_file(self._path(name), str(temporary))

    def read(self, name: str) -> bytes | None:
        """The content of a small file, None if it does not exist."""
        with self._translated(missing=True), suppress(FileNotFoundError):
            return self._fs.cat_file(self._path(name))
        return None

    def write(self, name: str, content: bytes) -> None:
        with self._translated():
            self._fs.pipe_file(self._path(name), content)

    def names(self, prefix: str = "") -> dict[str, int]:
        """{name relative to `prefix`: bytes} of all files below it."""
        with self._translated(missing=True):
            self._fs.invalidate_cache()
            root = self._path(prefix)
            try:
                entries = self._fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
        files = {name: info for name, info in entries.items() if info.get("type") == "file"}
        return {name[len(root) :].lstrip("/"): int(info.get("size") or 0) for name, info in files.items()}

    def changed(self, name: str) -> datetime:
        with self._translated(missing=True):
            time = self._fs.modified(self._path(name))
        return time if time.tzinfo else time.replace(tzinfo=UTC)

    def delete(self, prefix: str) -> int:
        """Delete all files below a prefix; returns their total bytes. No error if there are none."""
        names = self.names(prefix)
        self.remove([f"{prefix}/{name}" for name in names])
        return sum(names.values())

    def remove(self, names: Sequence[str]) -> None:
        """Delete files; missing ones are ignored."""
        with self._translated(missing=True), suppress(FileNotFoundError):
            if names:
                self._fs.rm([self._path(name) for name in names])

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    @contextmanager
    def _translated(self, missing: bool = False) -> Iterator[None]:
        """Translate errors of the libraries behind fsspec; with `missing`, FileNotFoundError passes through."""
        try:
            yield
        except (BadInput, StoreUnavailable, Damaged):
            raise
        except ImportError as error:
            raise BadInput(f"SPECULOOS_STORE: {error}.", "For S3: pip install 'speculoos[s3]'.") from None
        except Exception as error:  # noqa: BLE001 - errors of optional libraries (botocore, aiohttp, …)
            if disk_full(error) or (missing and isinstance(error, FileNotFoundError)):
                raise
            message = f"The store {self.url} cannot be accessed ({type(error).__name__}: {first_line(error)})."
            raise StoreUnavailable(message, STORE_HINT) from None


@functools.cache
def open_store(url: str) -> Store | None:
    """The store at this URL, None for "". Raises BadInput for an unsupported URL."""
    return Store(url) if url else None


def hide_credentials(url: str) -> str:
    return re.sub(r"(?<=://)[^/@:]*(:[^@]*)?@", "", url)  # an S3 key may contain slashes


def files_to_upload(folder: Path) -> dict[str, Path]:
    """{relative name: path} of the files of a folder that are uploaded, or of one file."""
    if folder.is_file():
        return {folder.name: folder}
    files: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "state-")) and name not in LOCAL)
        paths = [Path(parent, name) for name in sorted(names) if not name.startswith(".")]
        files |= {path.relative_to(folder).as_posix(): path for path in paths}
    return files


def write_key(folder: Path, key: str) -> None:
    """Mark a local folder as identical to the stored folder `key`."""
    with new_file(folder / KEY_FILE) as out:
        out.write(key)


def read_key(folder: Path) -> str:
    """The key of a local folder's mark, "" for none."""
    with suppress(OSError):
        return (folder / KEY_FILE).read_text().strip()
    return ""
