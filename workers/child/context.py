"""What a job's work is given: a Reporter, and fenced access to its rows and folders."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from models.damage import Known
from speculoos.errors import Fenced, NotFound
from speculoos.reporting import check_stop
from speculoos.settings import Settings
from speculoos.sums import Sums
from tracking import db, jobs, leases, queries
from tracking.names import WORDS
from tracking.tables import Base, Job, Table
from workers.child.reporter import JobReporter
from workers.timing import Timing


class Context(JobReporter):
    """A JobReporter that also reads rows, publishes outputs and knows where files go."""

    def __init__(self, settings: Settings, job_id: str, attempt: int, timing: Timing, parent: int | None = None):
        super().__init__(settings, job_id, attempt, timing, parent)
        self.timing = timing

    @contextmanager
    def session(self) -> Iterator[Session]:
        """A short session that commits at its end; for reading, and for rows that need no fence."""
        with db.writing(self.settings) as session:
            yield session

    @contextmanager
    def fenced(self) -> Iterator[Session]:
        """A session that commits only while this attempt owns the job. Raises Fenced before anything is written."""
        with db.writing(self.settings) as session:
            own = update(Job).where(Job.id == self.job_id, jobs.mine(self.attempt)).values(version=Job.version + 1)
            if session.execute(own.execution_options(synchronize_session=False)).rowcount != 1:
                raise Fenced(f"Attempt {self.attempt} of job {self.job_id} is over.")
            yield session

    def usable(self, table: type[Table], row_id: str) -> Any:
        """An input's row, readable after the session. Raises NotFound, or Conflict when it is not ready."""
        with db.reading(self.settings) as session:
            if row := session.get(table, row_id):
                queries.must_be_ready(row)
                return row
        raise NotFound(f"The {WORDS[table.__tablename__]} this job needs ({row_id}) was deleted.")

    @property
    def sums(self) -> Sums:
        """Sums of files that were taken before, by anyone in this home."""
        return Sums.of(self.settings)

    @staticmethod
    def known(base: Base) -> Known:
        """What a base's row says of its files: `load_base` compares them."""
        return Known.of(base.weights_sha256, base.tokenizer_sha256, base.card)

    def publish(self, table: type[Table], row_id: str, **values: Any) -> None:
        """Fill an output row, fenced: `publish(Dataset, id, state="ready", rows=120)`."""
        with self.fenced() as session:
            session.execute(update(table).where(table.id == row_id).values(**values))

    def hold_device(self, device: str) -> None:
        """Wait for the device's lease, then keep it until this process ends (its supervisor gives it back).

        Raises Cancelled when the user stops the job while it waits.
        """
        while not self._acquire(device):
            check_stop(self)
            time.sleep(self.timing.poll_seconds)
        self.on_beat = lambda: self._keep(device)

    def _acquire(self, device: str) -> bool:
        with self.session() as session:
            if leases.acquire(session, device, self.holder, self.timing.lease_seconds, self.attempt):
                return True
            self.progress(0, None, "", f"Waits for {device}: {leases.holder_name(session, device)} holds it.")
            return False

    def _keep(self, device: str) -> None:
        with self.session() as session:
            leases.renew(session, device, self.holder, self.timing.lease_seconds, self.attempt)

    @property
    def holder(self) -> str:
        """This job's name on a device lease."""
        return f"job:{self.job_id}"

    def dataset_folder(self, dataset_id: str) -> Path:
        """home/datasets/<id>: shared by all attempts, whose shards are whole or absent."""
        return self.settings.home / "datasets" / dataset_id

    def checkpoint_folder(self, checkpoint_id: str) -> Path:
        """home/checkpoints/<id>/attempt-N of this attempt, made if new: no other attempt writes there."""
        return _made(self.settings.home / "checkpoints" / checkpoint_id / f"attempt-{self.attempt}")

    def earlier_attempts(self, checkpoint_id: str) -> list[Path]:
        """Folders of earlier attempts, the latest first: where to look for a state to go on from."""
        folder = self.settings.home / "checkpoints" / checkpoint_id
        numbered = [(int(p.name.removeprefix("attempt-")), p) for p in folder.glob("attempt-*") if p.is_dir()]
        return [path for number, path in sorted(numbered, reverse=True) if number < self.attempt]

    def model_folder(self, base_id: str) -> Path:
        """home/models/<id>; the work makes it whole under another name and renames it."""
        return self.settings.home / "models" / base_id


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
