"""The `speculoos` command that is equivalent to a form. No torch."""

from collections.abc import Iterable, Mapping

from workers.jobs.request import Request, named_ids
from workers.jobs.words import joined, option


def command_for(
    request: Request, names: Mapping[str, str] | None = None, name: str = "", flags: Iterable[str] = ()
) -> str:
    """The shell command that submits `request`. `names` maps row ids to names (commands accept both); `name` is the
    output's; `flags` are added at the end."""
    return joined([*request.command(named_ids(names)), *option("name", name), *flags])
