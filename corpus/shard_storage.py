"""Storage of finished shards of a generation, addressed by key and written atomically: a local folder, or the store
that several machines share (speculoos.store)."""

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from models.identity import read_json
from speculoos.errors import BadInput
from speculoos.files import link_or_copy, sync_file, write_json
from speculoos.store import Store


class ShardFolder(Protocol):
    """Keys identify content, so putting a key twice is idempotent."""

    def report(self, key: str) -> dict[str, Any] | None:
        """The report stored with a shard; None while the shard is incomplete."""

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        """Move a local file into the storage, with its report."""

    def fetch(self, key: str, target: Path) -> None:
        """Copy or link the shard to a local file, atomically. Raises OSError when it does not exist."""

    def drop(self, key: str) -> None:
        """Remove a damaged shard."""

    def clear(self) -> None:
        """Remove all shards, after they were copied to the data set."""


class LocalShardFolder:
    """A ShardFolder in a local folder that all workers share, on the same disk as the data set."""

    def __init__(self, folder: Path):
        self.folder = folder

    def report(self, key: str) -> dict[str, Any] | None:
        """The report is written last, so a shard with one is complete."""
        if not self._file(key).exists():
            return None
        with suppress(BadInput):  # a damaged report: the shard is generated again
            return read_json(self._report_path(key)) or None
        return None

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        sync_file(file)
        file.replace(self._file(key))
        write_json(self._report_path(key), report)

    def fetch(self, key: str, target: Path) -> None:
        """Uses a hard link if possible."""
        file = self._file(key)
        if not (target.exists() and target.samefile(file)):
            link_or_copy(file, target)

    def drop(self, key: str) -> None:
        self._report_path(key).unlink(missing_ok=True)
        self._file(key).unlink(missing_ok=True)

    def clear(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, key: str) -> Path:
        return self.folder / f"{key}.jsonl"

    def _report_path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


class StoreShardFolder:
    """A ShardFolder in a store that all machines share, under the key prefix `prefix`."""

    def __init__(self, store: Store, prefix: str):
        self.store, self.prefix = store, prefix

    def report(self, key: str) -> dict[str, Any] | None:
        """The report is written last, so a shard with one is complete."""
        try:
            report = json.loads(self.store.read(self._report_path(key)) or b"null")
        except ValueError:  # a damaged report: the shard is generated again
            return None
        return report if isinstance(report, dict) else None

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        self.store.put_file(self._file(key), file)
        self.store.write(self._report_path(key), json.dumps(report).encode())
        file.unlink()

    def fetch(self, key: str, target: Path) -> None:
        self.store.get_file(self._file(key), target)

    def drop(self, key: str) -> None:
        for name in (self._report_path(key), self._file(key)):
            self.store.delete(name)

    def clear(self) -> None:
        self.store.delete(self.prefix)

    def _file(self, key: str) -> str:
        return f"{self.prefix}/{key}.jsonl"

    def _report_path(self, key: str) -> str:
        return f"{self.prefix}/{key}.json"
