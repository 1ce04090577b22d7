"""What stands above a start button: the estimate, what may go wrong, and the command that does the same."""

from app.widgets.elements import notice, tiles
from app.widgets.formatting import duration, size
from app.widgets.text import safe, tag
from workers.ask.estimates import Estimate


def review(estimate: Estimate, command: str) -> str:
    """The whole box."""
    warnings = "".join(notice(text, "warn") for text in estimate.warnings)
    return tag("div", figures(estimate) + warnings + command_box(command), class_="sp-stack")


def figures(estimate: Estimate) -> str:
    """Time, memory, disk."""
    time = "unknown" if estimate.seconds is None else f"about {rounded(estimate.seconds)}"
    return tiles(
        [
            ("Time", time, f"from {estimate.basis}"),
            ("Memory", size(estimate.memory), f"{size(estimate.free_memory)} free now"),
            ("Disk", size(estimate.disk), f"{size(estimate.free_disk)} free now"),
        ]
    )


def rounded(seconds: float) -> str:
    """A time as a guess deserves it: 97 s → "2 min"."""
    if seconds < 60:
        return duration(max(round(seconds, -1), 5))
    minutes = max(round(seconds / 60), 1)
    return f"{minutes} min" if minutes < 90 else f"{seconds / 3600:.1f} h"


def command_box(command: str) -> str:
    """The command line that does the same, to be copied."""
    label = tag("span", "The command that does the same", class_="sp-tile-label")
    return tag("div", label + tag("code", safe(command), class_="sp-command", tabindex="0"))
