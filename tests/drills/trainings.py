"""One training after another in a home, all of the same data and settings: the same weights, bit for bit."""

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
    """Submitted one by one; `most` is how many processes ever worked on one of them at once."""

    settings: Settings
    base_id: str
    dataset_id: str
    steps: int
    save_every: int
    ids: list[str] = field(default_factory=list)
    most: int = 0
    _watch: Watch | None = None

    def current(self) -> Job:
        """The row of the last one."""
        with db.reading(self.settings) as session:
            return jobs.get(session, self.ids[-1])

    def next(self) -> Job:
        """Submit another."""
        self._note()
        wanted = {**SETTINGS, "max_steps": self.steps, "save_every": self.save_every}
        request = Train(method="medusa", base_id=self.base_id, dataset_id=self.dataset_id, settings=wanted)
        made = submit(request, name=f"heads-{len(self.ids)}", settings=self.settings)
        self.ids.append(made.id)
        self._watch = Watch(made.id).__enter__()
        return made

    def running(self) -> Job:
        """One that has begun to take steps and is far from its end; another one is submitted if need be."""
        if not self.ids or self.current().state in FINISHED or self.current().done > 0.8 * self.steps:
            if self.ids:
                self.ended()
            self.next()
        wait_for(lambda: self._takes_steps() or self.current().state in FINISHED, "a training that takes steps", ENDS)
        assert (job := self.current()).state != "FAILED", f"{job.error} {job.hint}"
        return job

    def ended(self) -> Job:
        """The last one, once it has ended well."""
        wait_for(lambda: self.current().state in FINISHED, "the end of a training", ENDS)
        assert (job := self.current()).state == "SUCCEEDED", f"{job.error} {job.hint}"
        self._note()
        return job

    def weights(self) -> list[str]:
        """The sha256 of each one's weights, in order. Its row names them once."""
        made = []
        for job_id in self.ids:
            with db.reading(self.settings) as session:
                found = session.query(Checkpoint).filter_by(job_id=job_id).one()
            made.append(hashlib.sha256((Path(found.path) / "model.safetensors").read_bytes()).hexdigest())
        return made

    def check_steps(self) -> None:
        """Every step of each once, none twice, none missing."""
        for job_id in self.ids:
            with db.reading(self.settings) as session:
                found = reports.metrics(session, job_id)["train/loss"]
            assert [step for step, _ in found] == list(range(1, self.steps + 1))

    def _takes_steps(self) -> bool:
        job = self.current()
        return job.state == "RUNNING" and job.done > job.done_before and bool(job.child)

    def _note(self) -> None:
        if self._watch:
            self._watch.__exit__()
            self.most, self._watch = max(self.most, self._watch.most), None
