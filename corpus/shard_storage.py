"""Storage of the finished shards of a generation, addressed by key: a local folder, or the store that several machines
share."""

import json
from pathlib import Path
from typing import Any

from speculoos.store import Store


class ShardFolder:
    """Shards below a prefix of a store. Keys identify content, so putting a shard twice is idempotent."""

    def __init__(self, store: Store, prefix: str):
        self.store, self.prefix = store, prefix

    def report(self, key: str) -> dict[str, Any] | None:
        """The report stored with a shard; it is written last, so None means that the shard is incomplete."""
        try:
            report = json.loads(self.store.read(self._report_path(key)) or b"null")
        except ValueError:  # a damaged report: the shard is generated again
            return None
        return report if isinstance(report, dict) else None

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        """Move a local file into the storage, with its report."""
        self.store.put_file(self._file(key), file)
        self.store.write(self._report_path(key), json.dumps(report).encode())
        file.unlink()

    def fetch(self, key: str, target: Path) -> None:
        """Copy the shard to a local file, atomically. Raises FileNotFoundError when it does not exist."""
        self.store.get_file(self._file(key), target)

    def drop(self, key: str) -> None:
        """Remove a damaged shard."""
        for name in (self._report_path(key), self._file(key)):
            self.store.delete(name)

    def clear(self) -> None:
        """Remove all shards, after they were copied to the data set."""
        self.store.delete(self.prefix)

    def _file(self, key: str) -> str:
        return f"{self.prefix}/{key}.jsonl"

    def _report_path(self, key: str) -> str:
        return f"{self.prefix}/{key}.json"
