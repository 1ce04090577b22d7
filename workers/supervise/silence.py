"""Detects leases that have not changed for too long, measured by the observer's monotonic clock.

A worker changes its job's `lease_until` with every renewal. The date itself is not compared with the current time:
clocks of machines differ and can be set. Only the time since the last observed change counts (as in the leader election
of Kubernetes).
"""

import time
from collections.abc import Callable, Iterable
from datetime import datetime

from tracking.tables import Job

LeaseState = tuple[int, datetime | None]
"""(attempt, lease_until) of a job."""


class LeaseMonitor:
    """Stores the lease of each running job and for how long it has been unchanged. Call `of` frequently.

    At most `longest_step` seconds count between two calls, so that leases do not expire because the observer, or the
    whole machine, was suspended.
    """

    def __init__(self, lease_seconds: float, longest_step: float, clock: Callable[[], float] = time.monotonic):
        self._lease_seconds, self._longest_step, self._clock = lease_seconds, longest_step, clock
        self._checked_at = clock()
        self._seen: dict[str, tuple[LeaseState, float]] = {}  # {job id: (lease, seconds unchanged)}

    def expired(self, running: Iterable[Job]) -> set[str]:
        """Ids of jobs whose lease has been unchanged for longer than its duration."""
        now = self._clock()
        elapsed, self._checked_at = min(now - self._checked_at, self._longest_step), now
        self._seen = {job.id: self._observe(job, elapsed) for job in running}
        return {job_id for job_id, (_, seconds) in self._seen.items() if seconds > self._lease_seconds}

    def _observe(self, job: Job, elapsed: float) -> tuple[LeaseState, float]:
        lease = job.attempt, job.lease_until
        before, seconds = self._seen.get(job.id, (None, 0.0))
        return lease, (seconds + elapsed if lease == before else 0.0)
