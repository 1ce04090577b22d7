"""The context of a job's work function: a Reporter with fenced access to the job's rows and folders."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from models.archive import WEIGHTS
from models.damage import BaseChecksums
from speculoos import machine
from speculoos.checksums import ChecksumCache, file_sha256
from speculoos.errors import BadInput, JobFailed, NotFound
from speculoos.files import total_bytes
from speculoos.reporting import check_stop
from speculoos.settings import Endpoint, Settings
from tracking import db, leases, moves, queries, shards, stored
from tracking.names import KIND_NAMES
from tracking.tables import Base, Checkpoint, Table
from workers.child.files import JobFiles
from workers.child.reporter import JobReporter
from workers.timing import JobTiming


class JobContext(JobReporter):
    """A JobReporter that also reads input rows, publishes outputs and returns folder paths."""

    def __init__(self, settings: Settings, job_id: str, attempt: int, timing: JobTiming, parent: int | None = None):
        super().__init__(settings, job_id, attempt, timing, parent)
        self.files = JobFiles(settings, self)
        self.holder = f"job:{job_id}"  # in leases

    def session(self) -> AbstractContextManager[Session]:
        """A short session that commits at the end; for reads, and for rows without a fence."""
        return db.writing(self.settings)

    @contextmanager
    def fenced(self) -> Iterator[Session]:
        """A session that commits only while this attempt owns the job. Raises Fenced before anything is written."""
        with db.writing(self.settings) as session:
            moved = moves.update_visibly(session, self.job_id, moves.owned_by_attempt(self.attempt))
            moves.check_fence(moved, self.job_id, self.attempt)
            yield session

    def check_owned(self) -> None:
        """Raises Fenced if this attempt no longer owns the job."""
        with self.fenced():
            pass

    def input_with_files(self, table: type[Table], row_id: str) -> Any:
        """An input's row as in `input_row`, with its files on this machine."""
        return self.files.download(self.input_row(table, row_id))

    def input_row(self, table: type[Table], row_id: str) -> Any:
        """An input's row, detached from its session. Raises NotFound, or Conflict if it is not ready."""
        with db.reading(self.settings) as session:
            row = session.get(table, row_id)
            if row is None:
                raise NotFound(f"The {KIND_NAMES[table.__tablename__]} this job needs ({row_id}) was deleted.")
            queries.must_be_ready(row)
        return row

    def endpoints(self, names: str) -> list[Endpoint]:
        """The endpoints in `names`, separated by commas. Raises BadInput for a name that is not in settings.toml."""
        known, stripped = self.settings.endpoints, [name.strip() for name in names.split(",") if name.strip()]
        if missing := [name for name in stripped if name not in known]:
            raise BadInput(
                f"There is no endpoint named {missing[0]!r} in settings.toml; known are: "
                f"{', '.join(known) or 'none yet'}.",
                "Add an [endpoints.NAME] table with its url, then retry.",
            )
        return [known[name] for name in dict.fromkeys(stripped)]

    @property
    def sums(self) -> ChecksumCache:
        """The checksum cache of the home folder."""
        return ChecksumCache.of(self.settings)

    @staticmethod
    def known(base: Base) -> BaseChecksums:
        """Checksums in a base model's row, for `load_base` to verify."""
        return BaseChecksums.of(base.weights_sha256, base.tokenizer_sha256, base.card)

    def publish(self, table: type[Table], row_id: str, **values: Any) -> None:
        """Update an output row, fenced: `publish(Dataset, id, state="ready", rows=120)`. Files at its `path` are
        uploaded to the store first."""
        folder = self.files.upload(table, row_id, str(values["path"])) if "path" in values else None
        with self.fenced() as session:
            session.execute(update(table).where(table.id == row_id).values(**values))
            if folder:
                stored.save_stored(session, stored.KINDS[table], row_id, folder)

    def publish_checkpoint(self, checkpoint_id: str, folder: Path, **values: Any) -> None:
        """Update a checkpoint's row with the files of this attempt, fenced."""
        facts = {"size_bytes": total_bytes(folder), "sha256": file_sha256(folder / WEIGHTS), "attempt": self.attempt}
        self.publish(Checkpoint, checkpoint_id, state="ready", path=str(folder), **facts, **values)

    def add_figures(self, checkpoint_id: str, figures: dict[str, Any]) -> None:
        """Add or replace figures in a checkpoint's row, fenced."""
        with self.fenced() as session:
            row = session.get_one(Checkpoint, checkpoint_id)
            row.figures = {**row.figures, **figures}

    def check_shards(self, noun: str = "shards failed") -> None:
        """Raises JobFailed if shards failed, with their number and the error, code and hint of the first."""
        with self.session() as session:
            failed, tally = shards.failed(session, self.job_id), shards.tally(session, self.job_id)
        if failed:
            first = failed[0]
            message = f"{len(failed)} of {tally.total} {noun}; number {first.number + 1}: {first.error}"
            raise JobFailed(first.error_code, message, first.hint or "A retry runs only the failed ones again.")

    def hold_device(self, device: str) -> None:
        """Wait for the device's lease and renew it until this process ends; the supervisor releases it.

        Raises Cancelled if the user stops the job during the wait.
        """
        lease = machine.device_key(device, self.settings.home)
        while not self._acquire(lease):
            check_stop(self)
            time.sleep(self.timing.poll_seconds)

        def renew() -> None:
            with self.session() as session:
                leases.renew(session, lease, self.holder, self.timing.lease_seconds, self.attempt)

        self.on_beat = renew

    def _acquire(self, lease: str) -> bool:
        with self.session() as session:
            if leases.acquire(session, lease, self.holder, self.timing.lease_seconds, self.attempt):
                return True
            self.report_waiting(f"Waits for {lease.partition('@')[0]}: {leases.holder_name(session, lease)} holds it.")
            return False

    def dataset_folder(self, dataset_id: str) -> Path:
        """home/datasets/<id>: shared by all attempts, as shards are written atomically."""
        return self.settings.home / "datasets" / dataset_id

    def checkpoint_folder(self, checkpoint_id: str) -> Path:
        """home/checkpoints/<id>/attempt-N of this attempt, created if missing; no other attempt writes there."""
        folder = self.settings.home / "checkpoints" / checkpoint_id / f"attempt-{self.attempt}"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def earlier_attempts(self, checkpoint_id: str) -> list[Path]:
        """Folders of earlier attempts, latest first, which may hold a checkpoint to resume from."""
        folder = self.settings.home / "checkpoints" / checkpoint_id
        numbered = [(int(p.name.removeprefix("attempt-")), p) for p in folder.glob("attempt-*") if p.is_dir()]
        return [path for number, path in sorted(numbered, reverse=True) if number < self.attempt]
