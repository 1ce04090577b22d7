"""What bodies of divided jobs have in common: how they end when shards did not end well."""

from speculoos.errors import JobFailed
from tracking import shards
from workers.child.context import JobContext


def check_shards(context: JobContext, noun: str = "shards were not made") -> None:
    """Raises JobFailed, saying how many did not end well and why the first did not, with its code."""
    with context.session() as session:
        failed, tally = shards.failed(session, context.job_id), shards.tally(session, context.job_id)
    if failed:
        first = failed[0]
        how = f"{len(failed)} of {tally.total} {noun}; number {first.number + 1}: {first.error}"
        raise JobFailed(first.error_code, how, first.hint or "Retry makes those again; the others are kept.")
