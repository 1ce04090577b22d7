"""The states of a job and their allowed transitions."""

from enum import StrEnum


class JobState(StrEnum):
    """QUEUED → RUNNING → SUCCEEDED | FAILED | CANCELLED,  RUNNING → INTERRUPTED → RUNNING."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    INTERRUPTED = "INTERRUPTED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    def can_become(self, other: "JobState") -> bool:
        return other in TRANSITIONS[self]


FINISHED = frozenset({JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED})
"""Final states, unless someone retries the job."""
WAITING = frozenset({JobState.QUEUED, JobState.INTERRUPTED})
TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: FINISHED | {JobState.INTERRUPTED},
    JobState.INTERRUPTED: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset({JobState.QUEUED}),  # retry
    JobState.CANCELLED: frozenset({JobState.QUEUED}),  # retry
}
"""Allowed next states. INTERRUPTED → FAILED only when no attempt is left."""
