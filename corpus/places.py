"""Where finished shards of a generation land: files known by their key, each whole or absent.

A folder of the home, or the store that several machines share (speculoos.store).
"""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from models.identity import read_json
from speculoos.errors import BadInput
from speculoos.files import link_or_copy, sync, write_json
from speculoos.store import Store


class ShardFolder(Protocol):
    """Keys name contents: a key that is put twice changes nothing."""

    def report(self, key: str) -> dict[str, Any] | None:
        """What was said of a shard when it was put; None while it has not landed whole."""

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        """Take a local file, which is gone afterwards, and what is to be said of it."""

    def fetch(self, key: str, target: Path) -> None:
        """Make the shard a local file, whole or not at all. Raises OSError where it is gone."""

    def drop(self, key: str) -> None:
        """Forget a shard that turned out to be damaged."""

    def clear(self) -> None:
        """Forget all of them: they are where they belong."""


class Folder:
    """A Place in a folder that all workers see, on the disk on which its shards are put together."""

    def __init__(self, folder: Path):
        self.folder = folder

    def report(self, key: str) -> dict[str, Any] | None:
        """See Place. The report is written last, so a shard with one is whole."""
        if not self._file(key).exists():
            return None
        with suppress(BadInput):  # a damaged one: the shard is made again
            return read_json(self._said(key)) or None
        return None

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        """See Place."""
        self.folder.mkdir(parents=True, exist_ok=True)
        sync(file)
        file.replace(self._file(key))
        write_json(self._said(key), report)

    def fetch(self, key: str, target: Path) -> None:
        """See Place. A link where the disk knows them: it costs neither time nor room."""
        file = self._file(key)
        if not (target.exists() and target.samefile(file)):
            link_or_copy(file, target)

    def drop(self, key: str) -> None:
        """See Place."""
        self._said(key).unlink(missing_ok=True)
        self._file(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """See Place."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.jsonl"

    def _said(self, key: str) -> Path:
        return self.folder / f"{key}.json"


class Shelf:
    """A Place in a store: shards from and for any machine."""

    def __init__(self, store: Store, place: str):
        self.store, self.place = store, place

    def report(self, key: str) -> dict[str, Any] | None:
        """See Place. The report is put last, so a shard with one is whole."""
        try:
            said = json.loads(self.store.read(self._said(key)) or b"null")
        except ValueError:  # a damaged one: the shard is made again
            return None
        return said if isinstance(said, dict) else None

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        """See Place."""
        self.store.put_file(self._file(key), file)
        self.store.write(self._said(key), json.dumps(report).encode())
        file.unlink()

    def fetch(self, key: str, target: Path) -> None:
        """See Place."""
        self.store.get_file(self._file(key), target)

    def drop(self, key: str) -> None:
        """See Place."""
        for name in (self._said(key), self._file(key)):
            self.store.delete(name)

    def clear(self) -> None:
        """See Place."""
        self.store.delete(self.place)

    def _file(self, key: str) -> str:
        return f"{self.place}/{key}.jsonl"

    def _said(self, key: str) -> str:
        return f"{self.place}/{key}.json"
