"""Whether the machine was busy with other programs while a speed was measured, as one warning for people."""

from speculoos.other_work import ALIKE, OtherWork
from speculoos.reporting import Reporter

UNSURE = 0.05
"""Relative standard error that timing may leave of a speedup before the machine counts as busy."""
AGAIN = "Measure again when less else is running."


class Load:
    """Counts from when it is made until `figures`."""

    def __init__(self) -> None:
        self._others = OtherWork()

    def figures(self, reporter: Reporter, noise: float) -> dict[str, float | str | None]:
        """What a result keeps: `other_load`, the share of the processor's time that other programs took (None where too
        little time passed to say), and `busy`, a warning, "" on a machine that was quiet enough, which is logged too.
        `noise`: the relative standard error that timing leaves of the speedup."""
        share = self._others.share()
        if busy := busy_warning(share, noise):
            reporter.log(busy, "warning")
        return {"other_load": share, "busy": busy}


def busy_warning(share: float | None, noise: float) -> str:
    """One or two sentences; "" where nothing has to be said."""
    if share is not None and share > ALIKE:
        return (
            f"The machine was busy: other programs took {share:.0%} of its processor time meanwhile, so these speeds "
            f"may be wrong. {AGAIN}"
        )
    if noise > UNSURE:
        return f"The machine was busy: step times vary, so the speedup is known to ± {1.96 * noise:.0%} only. {AGAIN}"
    return ""
