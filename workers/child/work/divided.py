"""Shared code of divided jobs: failed shards."""

from speculoos.errors import JobFailed
from tracking import shards
from workers.child.context import JobContext


def check_shards(context: JobContext, noun: str = "shards failed") -> None:
    """Raises JobFailed if shards failed, with their number and the error, code and hint of the first."""
    with context.session() as session:
        failed, tally = shards.failed(session, context.job_id), shards.tally(session, context.job_id)
    if failed:
        first = failed[0]
        message = f"{len(failed)} of {tally.total} {noun}; number {first.number + 1}: {first.error}"
        raise JobFailed(first.error_code, message, first.hint or "A retry runs only the failed ones again.")
