"""What stands above a start button: the estimate, what may go wrong, and the command that does the same."""

from app.widgets.elements import notice, tiles
from app.widgets.formatting import rounded, size
from app.widgets.text import safe, tag
from workers.jobs.estimates import Estimate


def review(estimate: Estimate, command: str) -> str:
    """The whole box."""
    warnings = "".join(notice(text, "warn") for text in estimate.warnings)
    return tag("div", figures(estimate) + warnings + command_box(command), class_="sp-stack")


def figures(estimate: Estimate) -> str:
    """Time, steps of a training, memory, disk."""
    time = "unknown" if estimate.seconds is None else f"about {rounded(estimate.seconds)}"
    basis = "; ".join(part for part in (worst_case(estimate.longest), f"from {estimate.basis}") if part)
    return tiles(
        [
            ("Time", time, basis),
            *([("Steps", f"{estimate.steps:,}", estimate.rhythm)] if estimate.steps else []),
            ("Memory", size(estimate.memory), f"{size(estimate.free_memory)} free now"),
            ("Disk", size(estimate.disk), f"{size(estimate.free_disk)} free now"),
        ]
    )


def line(estimate: Estimate) -> str:
    """The same in one line, for where there is little room."""
    time = "time unknown" if estimate.seconds is None else f"about {rounded(estimate.seconds)}"
    time = ", ".join(part for part in (time, worst_case(estimate.longest)) if part)
    steps = [f"{estimate.steps:,} steps"] if estimate.steps else []
    words = " · ".join([time, *steps, f"{size(estimate.memory)} memory", f"{size(estimate.disk)} disk"])
    return tag("p", safe(words), class_="sp-review-line")


def worst_case(seconds: float | None) -> str:
    """What an evaluation takes at most, since it repeats its questions on a busy machine; "" where nothing repeats."""
    return f"up to {rounded(seconds)} if the machine is busy" if seconds else ""


def command_box(command: str) -> str:
    """The command line that does the same, to be copied."""
    label = tag("span", "The command that does the same", class_="sp-tile-label")
    return tag("div", label + tag("code", safe(command), class_="sp-command", tabindex="0"))
