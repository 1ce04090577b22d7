"""Trainings that run one after another in a home, with the same data and settings and so the same weights."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from speculoos.settings import Settings
from tests.tools.running import wait_for
from tests.workers.training_bench import Watch
from tracking import db, jobs, reports
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Job
from workers.jobs.requests import Train
from workers.jobs.submit import submit

SETTINGS = {"epochs": 0.0, "batch_tokens": 256, "eval_every": 0, "max_length": 64, "base_dtype": "float32"}
ENDS = 600.0
"""Seconds in which a training that is left alone has ended."""


@dataclass
class Trainings:
    """Trainings, submitted one by one. `most_at_once` is the largest number of processes that worked on one at once."""

    settings: Settings
    base_id: str
    dataset_id: str
    steps: int
    save_every: int
    ids: list[str] = field(default_factory=list)
    most_at_once: int = 0
    _watch: Watch | None = None

    def current(self) -> Job:
        """The row of the last training."""
        with db.reading(self.settings) as session:
            return jobs.get(session, self.ids[-1])

    def submit_next(self) -> Job:
        """Submit another training."""
        self._note()
        settings = {**SETTINGS, "max_steps": self.steps, "save_every": self.save_every}
        request = Train(method="medusa", base_id=self.base_id, dataset_id=self.dataset_id, settings=settings)
        job = submit(request, name=f"heads-{len(self.ids)}", settings=self.settings)
        self.ids.append(job.id)
        self._watch = Watch(job.id).__enter__()
        return job

    def ensure_running(self) -> Job:
        """Wait for a training that takes steps and is far from its end; submits another one if needed."""
        if not self.ids or self.current().state in FINISHED or self.current().done > 0.8 * self.steps:
            if self.ids:
                self.wait_ended()
            self.submit_next()
        wait_for(lambda: self._takes_steps() or self.current().state in FINISHED, "a training that takes steps", ENDS)
        assert (job := self.current()).state != "FAILED", f"{job.error} {job.hint}"
        return job

    def wait_ended(self) -> Job:
        """Wait until the last training has succeeded."""
        wait_for(lambda: self.current().state in FINISHED, "the end of a training", ENDS)
        assert (job := self.current()).state == "SUCCEEDED", f"{job.error} {job.hint}"
        self._note()
        return job

    def weights(self) -> list[str]:
        """The sha256 of the weights of each training, in order. Each training has exactly one checkpoint row."""
        digests = []
        for job_id in self.ids:
            with db.reading(self.settings) as session:
                checkpoint = session.query(Checkpoint).filter_by(job_id=job_id).one()
            digests.append(hashlib.sha256((Path(checkpoint.path) / "model.safetensors").read_bytes()).hexdigest())
        return digests

    def check_steps(self) -> None:
        """Check that each training logged every step exactly once."""
        for job_id in self.ids:
            with db.reading(self.settings) as session:
                losses = reports.metrics(session, job_id)["train/loss"]
            assert [step for step, _ in losses] == list(range(1, self.steps + 1))

    def _takes_steps(self) -> bool:
        job = self.current()
        return job.state == "RUNNING" and job.done > job.done_before and bool(job.child)

    def _note(self) -> None:
        if self._watch:
            self._watch.__exit__()
            self.most_at_once, self._watch = max(self.most_at_once, self._watch.most), None
