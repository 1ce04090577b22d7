"""Whose lease has stood still for too long, by the watcher's own clock.

A worker changes its job's `lease_until` with every renewal. Whether that date has passed is not asked: a clock that is
put forward by an hour would end every job, one put back would keep the dead alive, and no two machines agree anyway.
Only the change counts, and how long the watcher has waited for one (as in Kubernetes' election of leaders).
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime

from tracking.tables import Job

Looks = tuple[int, datetime | None]
"""A job's attempt and its `lease_until`."""


class Silence:
    """Remembers how each running job's lease looked, and for how long. One for the life of a process that looks often.

    Between two looks at most `longest_step` seconds count, so that nobody is judged right after the watcher itself, or
    the whole machine, stood still.
    """

    def __init__(self, lease_seconds: float, longest_step: float, clock: Callable[[], float] = time.monotonic):
        self._patience, self._longest_step, self._clock = lease_seconds, longest_step, clock
        self._looked = clock()
        self._seen: dict[str, tuple[Looks, float]] = {}  # and for how many seconds it has looked so

    def of(self, running: Iterable[Job]) -> set[str]:
        """Ids of the jobs that have not been heard of for as long as a lease lasts."""
        at = self._clock()
        passed, self._looked = min(at - self._looked, self._longest_step), at
        self._seen = {job.id: self._look(job, passed) for job in running}
        return {job_id for job_id, (_, seconds) in self._seen.items() if seconds > self._patience}

    def _look(self, job: Job, passed: float) -> tuple[Looks, float]:
        looks = job.attempt, job.lease_until
        before, seconds = self._seen.get(job.id, (None, 0.0))
        return looks, (seconds + passed if looks == before else 0.0)
