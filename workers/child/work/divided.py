"""What bodies of divided jobs have in common: how they end when shards did not end well."""

from speculoos.errors import SpeculoosError
from tracking import shards
from workers.child.context import Context


class ShardFailed(SpeculoosError):
    """Shards did not end well; `code` is that of the first."""

    def __init__(self, code: str, message: str, hint: str):
        super().__init__(message, hint)
        self._code = code

    @property
    def code(self) -> str:
        return self._code or super().code


def check_shards(context: Context, noun: str = "shards were not made") -> None:
    """Raises ShardFailed, saying how many did not end well and why the first did not."""
    with context.session() as session:
        failed, tally = shards.failed(session, context.job_id), shards.tally(session, context.job_id)
    if failed:
        first = failed[0]
        how = f"{len(failed)} of {tally.total} {noun}; number {first.number + 1}: {first.error}"
        raise ShardFailed(first.error_code, how, first.hint or "Retry makes those again; the others are kept.")
