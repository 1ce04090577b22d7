"""What `--estimate` prints in place of doing the work: time, disk and memory, from the request alone."""

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import figures, finish
from speculoos.settings import Settings

if TYPE_CHECKING:
    from workers.jobs.requests import Request

EstimateOnly = Annotated[
    bool, typer.Option("--estimate", help="Only estimate time, disk and memory; nothing is started.")
]


def show_estimate(settings: Settings, request: "Request", as_json: bool) -> None:
    """Check the request as a submit would, and print what it will take. Raises what a submit raises."""
    from workers.jobs.submit import check_and_estimate

    found = check_and_estimate(settings, request)
    result = {
        **{"kind": request.kind, "seconds": _whole(found.seconds), "longest_seconds": _whole(found.longest)},
        **{"disk_bytes": _whole(found.disk), "memory_bytes": _whole(found.memory), "steps": found.steps},
        **{"rests_on": found.basis, "warnings": found.warnings},
    }
    shown = {
        "time": f"about {timedelta(seconds=round(found.seconds))}" if found.seconds is not None else "unknown",
        "at most": str(timedelta(seconds=round(found.longest))) if found.longest else "",
        "steps": f"{found.steps:,} {found.rhythm}" if found.steps else "",
        "disk": f"{found.disk / 1e6:,.1f} MB",
        "memory": f"{found.memory / 1e6:,.0f} MB",
        "rests on": found.basis,
    }
    text = figures({name: value for name, value in shown.items() if value})
    finish(result, as_json, "\n".join([text, *found.warnings]))


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
