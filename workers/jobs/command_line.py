"""The `speculoos` command that is equivalent to a form. No torch."""

from collections.abc import Iterable, Mapping

from workers.jobs.request import Request, named_ids
from workers.jobs.words import Operand, joined, option


def command_for(
    request: Request, names: Mapping[str, str] | None = None, name: str = "", flags: Iterable[str] = ()
) -> str:
    """The shell command that submits `request`. `names` maps row ids to names (commands accept both); `name` is the
    output's; `flags` are added at the end."""
    return joined([*request.command(named_ids(names)), *option("name", name), *flags])


def extend_command(name: str, limit: int) -> str:
    """The shell command that adds responses to the data set `name`."""
    return joined(["data", "extend", Operand(name), "--limit", str(limit)])
