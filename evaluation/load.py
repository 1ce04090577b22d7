"""Detects whether other programs disturbed a speed measurement, as a warning for users."""

from speculoos.other_work import MAX_LOAD_DIFFERENCE, OtherCpuLoad
from speculoos.reporting import Reporter

MAX_NOISE = 0.05
"""Maximum relative standard error of a speedup due to timing; above it the machine counts as busy."""
HINT = "Measure again when less else is running."


class LoadMonitor:
    """Measures other programs' load from its creation until `figures`."""

    def __init__(self) -> None:
        self._others = OtherCpuLoad()

    def figures(self, reporter: Reporter, noise: float) -> dict[str, float | str | None]:
        """`other_load`, the share of CPU time used by other programs (None if the measurement was too short), and
        `busy`, a warning that is also logged, "" if none. `noise`: the relative standard error of the speedup due to
        timing."""
        share = self._others.share()
        if busy := busy_warning(share, noise):
            reporter.log(busy, "warning")
        return {"other_load": share, "busy": busy}


def busy_warning(share: float | None, noise: float) -> str:
    """A warning of one or two sentences, "" if none."""
    if share is not None and share > MAX_LOAD_DIFFERENCE:
        return (
            f"The machine was busy: other programs took {share:.0%} of its processor time meanwhile, so these speeds "
            f"may be wrong. {HINT}"
        )
    if noise > MAX_NOISE:
        return f"The machine was busy: step times vary, so the speedup is known to ± {1.96 * noise:.0%} only. {HINT}"
    return ""
