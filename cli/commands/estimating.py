"""`--estimate`: prints the time, disk and memory that a request would take."""

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
    """Check the request like `submit` and print its estimate. Raises the same errors as `submit`."""
    from workers.jobs.submit import check_and_estimate

    guess = check_and_estimate(settings, request)
    result = {
        "kind": request.kind,
        "seconds": _rounded(guess.seconds),
        "disk_bytes": _rounded(guess.disk),
        "memory_bytes": _rounded(guess.memory),
        "steps": guess.steps,
        "rests_on": guess.basis,
        "warnings": guess.warnings,
    }
    shown = {
        "time": f"about {timedelta(seconds=round(guess.seconds))}" if guess.seconds is not None else "unknown",
        "steps": f"{guess.steps:,} {guess.rhythm}" if guess.steps else "",
        "disk": f"{guess.disk / 1e6:,.1f} MB",
        "memory": f"{guess.memory / 1e6:,.0f} MB",
        "based on": guess.basis,
    }
    text = figures({name: value for name, value in shown.items() if value})
    finish(result, as_json, "\n".join([text, *guess.warnings]))


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)
