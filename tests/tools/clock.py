"""A clock that tests can step for the processes of a bench, without changing the machine's clock."""

from pathlib import Path

from tests.workers.conftest import CLONE, Bench

STEPPED = CLONE / "tests" / "tools" / "stepped_clock"


class Clock:
    """Steps the clock of the processes that a bench starts from now on."""

    def __init__(self, bench: Bench, folder: Path):
        self.path = folder / "clock"
        self.step(0)
        bench.environment |= {"TEST_CLOCK_FILE": str(self.path), "PYTHONPATH": f"{STEPPED}:{CLONE}"}

    def step(self, ahead: float) -> None:
        """Set the processes' clock `ahead` seconds ahead of the machine's."""
        self.path.with_suffix(".new").write_text(str(ahead))
        self.path.with_suffix(".new").rename(self.path)
