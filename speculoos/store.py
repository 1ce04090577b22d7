"""Files where every machine reaches them: a folder, S3 or whatever fsspec opens (SPECULOOS_STORE). No torch.

    <place>/folders/<key>.json    {name: {"sha256", "bytes"}} of a folder's files; the key is the sha256 of that text
    <place>/files/<sha256>        their contents, each once

Contents come first and the list last, so a folder that is listed is whole. Whatever was put half has another size or
another sum, is put again, and is never handed out: all sums are checked by who takes files. A place is a path such as
`checkpoints/<id>`; what is in it may be deleted at once.
"""

import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from speculoos.errors import BadInput, Damaged, Unavailable
from speculoos.faults import disk_full
from speculoos.files import new_file, new_path
from speculoos.sums import file_sha256

MARK = ".stored"
"""In a folder that was put or taken: its key. A folder whose mark is the key wanted needs no look at the store."""
LOCAL = ("parts",)
"""Folders inside a folder that stay on their machine, beside training states (`state-…`) and names with a dot."""
Sum = Callable[[Path], str]
MEND = "Check SPECULOOS_STORE, the AWS_… variables and the server behind them; the job can be retried."


class StoreAway(Unavailable):
    """The store does not answer now."""


@dataclass(frozen=True)
class StoredFolder:
    """A folder in the store: its key, and the bytes of all its files."""

    key: str
    bytes: int


class Store:
    """One store, by its URL. Every method raises StoreAway when it does not answer."""

    def __init__(self, url: str):
        self.url = shown(url)
        with self._translated():
            self._fs, self._root = _opened(url)

    def put_folder(self, place: str, folder: Path, sums: Sum = file_sha256) -> StoredFolder:
        """Put a folder (or one file, as a folder of it alone); what lies there already is not sent again."""
        files = files_of(folder)
        listed = {name: {"sha256": sums(path), "bytes": path.stat().st_size} for name, path in files.items()}
        for name, entry in listed.items():
            self.put_file(f"{place}/files/{entry['sha256']}", files[name])
        text = json.dumps(listed, sort_keys=True).encode()
        key = hashlib.sha256(text).hexdigest()
        self.write(_list(place, key), text)
        return StoredFolder(key, sum(entry["bytes"] for entry in listed.values()))

    def get_folder(self, place: str, key: str, target: Path) -> None:
        """Make `target` hold exactly that folder's files, each whole or absent while it goes on; its mark comes last.
        What has no place in a store stays. Raises Damaged for a file that is not what was put."""
        listed = self.listed(place, key)
        target.mkdir(parents=True, exist_ok=True)
        (target / MARK).unlink(missing_ok=True)
        for name, entry in listed.items():
            self._bring(f"{place}/files/{entry['sha256']}", entry["sha256"], target / name)
        for name, path in files_of(target).items():
            if name not in listed:
                path.unlink(missing_ok=True)
        mark(target, key)

    def listed(self, place: str, key: str) -> dict[str, dict[str, Any]]:
        """{name: {sha256, bytes}} of a folder's files. Raises Damaged when the list is gone or is not what was put."""
        text = self.read(_list(place, key))
        if text is None or hashlib.sha256(text).hexdigest() != key:
            raise Damaged(f"{self.url}/{place} does not hold the folder {key[:12]} any more, or not whole.")
        listed = json.loads(text)
        for name in listed:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise Damaged(f"{self.url}/{place} names a file outside of its folder ({name}).")
        return listed

    def put_file(self, name: str, path: Path) -> None:
        """Put a file, unless one of its size lies there already: names tell contents."""
        with self._translated():
            if self._size(name) != path.stat().st_size:
                self._fs.put_file(str(path), self._path(name))

    def get_file(self, name: str, target: Path) -> None:
        """Make it a local file, whole or not at all. Raises FileNotFoundError where there is none."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with new_path(target) as temporary, self._translated(missing=True):
            self._fs.get_file(self._path(name), str(temporary))

    def read(self, name: str) -> bytes | None:
        """A small file's content, None where there is none."""
        with self._translated(missing=True), suppress(FileNotFoundError):
            return self._fs.cat_file(self._path(name))
        return None

    def write(self, name: str, content: bytes) -> None:
        """Put a small file."""
        with self._translated():
            self._fs.pipe_file(self._path(name), content)

    def names(self, place: str = "") -> dict[str, int]:
        """{name below `place`: bytes} of all files there."""
        with self._translated(missing=True):
            self._fs.invalidate_cache()
            root = self._path(place)
            try:
                found = self._fs.find(root, detail=True)
            except FileNotFoundError:
                return {}
        files = {name: facts for name, facts in found.items() if facts.get("type") == "file"}
        return {name[len(root) :].lstrip("/"): int(facts.get("size") or 0) for name, facts in files.items()}

    def changed(self, name: str) -> datetime:
        """When a file was put."""
        with self._translated(missing=True):
            at = self._fs.modified(self._path(name))
        return at if at.tzinfo else at.replace(tzinfo=UTC)

    def delete(self, place: str) -> int:
        """Remove all files below a place; returns their bytes. No error where there are none."""
        names = self.names(place)
        self.remove([f"{place}/{name}" for name in names])
        return sum(names.values())

    def remove(self, names: Sequence[str]) -> None:
        """Remove files. No error for those that are gone already."""
        with self._translated(missing=True), suppress(FileNotFoundError):
            if names:
                self._fs.rm([self._path(name) for name in names])

    def _bring(self, name: str, sha256: str, target: Path) -> None:
        if target.is_file() and file_sha256(target) == sha256:
            return
        try:
            with new_path(target) as temporary:
                self.get_file(name, temporary)
                if file_sha256(temporary) != sha256:
                    raise Damaged(f"{self.url}/{name} is damaged: its sha256 is not the one it was put with.")
        except FileNotFoundError:
            raise Damaged(f"{self.url}/{name} is missing.") from None

    def _size(self, name: str) -> int | None:
        try:
            return int(self._fs.info(self._path(name), refresh=True)["size"])
        except FileNotFoundError:
            return None

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}".rstrip("/")

    @contextmanager
    def _translated(self, missing: bool = False) -> Iterator[None]:
        """Errors of the many libraries behind fsspec, in one sentence; with `missing` a file that is not there stays
        FileNotFoundError."""
        try:
            yield
        except (BadInput, StoreAway, Damaged):
            raise
        except ImportError as error:
            raise BadInput(f"SPECULOOS_STORE: {error}.", "For S3: pip install 'speculoos[s3]'.") from None
        except FileNotFoundError as error:
            if missing:
                raise
            raise StoreAway(f"The store {self.url} has no such place ({_first(error)}).", MEND) from None
        except Exception as error:  # noqa: BLE001 - botocore's, aiohttp's and others', which are not even installed here
            if disk_full(error):
                raise
            said = f"The store {self.url} does not answer as it should ({type(error).__name__}: {_first(error)})."
            raise StoreAway(said, MEND) from None


@functools.cache
def open_store(url: str) -> Store | None:
    """The store of this URL, None for "". Raises BadInput for a URL that nothing here opens."""
    return Store(url) if url else None


def shown(url: str) -> str:
    """The URL without user and password."""
    return re.sub(r"(?<=://)[^/@:]*(:[^@]*)?@", "", url)  # a key of S3 may hold slashes


def files_of(folder: Path) -> dict[str, Path]:
    """{name: path} of the files of a folder that travel, or of one file."""
    if folder.is_file():
        return {folder.name: folder}
    found: dict[str, Path] = {}
    for at, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _travels(name))
        here = [Path(at, name) for name in sorted(names) if not name.startswith(".")]
        found |= {path.relative_to(folder).as_posix(): path for path in here}
    return found


def mark(folder: Path, key: str) -> None:
    """Say that a local folder is what the store has under `key`."""
    with new_file(folder / MARK) as out:
        out.write(key)


def marked(folder: Path) -> str:
    """The key that was marked, "" for none."""
    with suppress(OSError):
        return (folder / MARK).read_text().strip()
    return ""


def _travels(name: str) -> bool:
    return not name.startswith((".", "state-")) and name not in LOCAL


def _opened(url: str) -> tuple[Any, str]:
    import fsspec

    options: Mapping[str, Any] = {"auto_mkdir": True} if url.startswith("file://") else {"use_listings_cache": False}
    try:
        fs, root = fsspec.core.url_to_fs(url, **options)
    except ValueError as error:
        raise BadInput(f"SPECULOOS_STORE: {error}.") from None
    return fs, root.rstrip("/")


def _list(place: str, key: str) -> str:
    return f"{place}/folders/{key}.json"


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0][:300].rstrip(".")
