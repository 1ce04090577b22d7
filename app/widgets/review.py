"""Review above a start button: the estimate, warnings and the equivalent command."""

from app.i18n import N_, t
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
    time = t("unknown") if estimate.seconds is None else t("about {time}", time=rounded(estimate.seconds))
    return tiles(
        [
            (t("Time"), time, t("from {basis}", basis=t(estimate.basis))),
            *([(t("Steps"), f"{estimate.steps:,}", estimate.step_note)] if estimate.steps else []),
            *(
                [(t("GPU memory"), size(estimate.gpu_memory), t("of {size}", size=size(estimate.gpu_bytes)))]
                if estimate.gpu_bytes
                else []
            ),
            (t("CPU memory"), size(estimate.memory), t("{size} free now", size=size(estimate.free_memory))),
            (t("Disk"), size(estimate.disk), t("{size} free now", size=size(estimate.free_disk))),
        ]
    )


def line(estimate: Estimate) -> str:
    """The estimate in one line."""
    time = t("time unknown") if estimate.seconds is None else t("about {time}", time=rounded(estimate.seconds))
    steps = [t("{n:,} steps", n=estimate.steps)] if estimate.steps else []
    space = [t("{size} memory", size=size(estimate.memory)), t("{size} disk", size=size(estimate.disk))]
    text = " · ".join([time, *steps, *space])
    return tag("p", safe(text), class_="sp-review-line")


def command_box(command: str, title: str = N_("Equivalent command")) -> str:
    """A command line, to copy."""
    label = tag("span", safe(t(title)), class_="sp-tile-label") if title else ""
    return tag("div", label + tag("code", safe(command), class_="sp-command", tabindex="0"))
