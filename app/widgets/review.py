"""Review above a start button: the estimate, warnings and the equivalent command."""

from app.widgets.elements import notice, tiles
from app.widgets.formatting import rounded, size
from app.widgets.text import safe, tag
from workers.jobs.estimates import Estimate


def review(estimate: Estimate, command: str) -> str:
    """The whole review as HTML."""
    warnings = "".join(notice(text, "warn") for text in estimate.warnings)
    return tag("div", figures(estimate) + warnings + command_box(command), class_="sp-stack")


def figures(estimate: Estimate) -> str:
    """Tiles of the estimate: time, steps of a training, memory, disk."""
    time = "unknown" if estimate.seconds is None else f"about {rounded(estimate.seconds)}"
    return tiles(
        [
            ("Time", time, f"from {estimate.basis}"),
            *([("Steps", f"{estimate.steps:,}", estimate.step_note)] if estimate.steps else []),
            *(
                [("GPU memory", size(estimate.gpu_memory), f"of {size(estimate.gpu_bytes)}")]
                if estimate.gpu_bytes
                else []
            ),
            ("CPU memory", size(estimate.memory), f"{size(estimate.free_memory)} free now"),
            ("Disk", size(estimate.disk), f"{size(estimate.free_disk)} free now"),
        ]
    )


def line(estimate: Estimate) -> str:
    """The estimate in one line."""
    time = "time unknown" if estimate.seconds is None else f"about {rounded(estimate.seconds)}"
    steps = [f"{estimate.steps:,} steps"] if estimate.steps else []
    words = " · ".join([time, *steps, f"{size(estimate.memory)} memory", f"{size(estimate.disk)} disk"])
    return tag("p", safe(words), class_="sp-review-line")


def command_box(command: str, words: str = "Equivalent command") -> str:
    """A command line, to copy."""
    label = tag("span", safe(words), class_="sp-tile-label") if words else ""
    return tag("div", label + tag("code", safe(command), class_="sp-command", tabindex="0"))
