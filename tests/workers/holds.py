"""Holds let a job wait at a known point while its test kills, stops or cancels something.

A hold is a file in the home with a number; a process that has reached the number waits until the file is gone.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRESS = "hold-progress"
"""Jobs wait once they have reported this many units."""
MERGE = "hold-merge"
"""Generations wait before they merge their shards."""
ANSWERS = "hold-answers"
"""The endpoints of `generation_bench.echoes` do not answer prompts from this number on."""


@contextmanager
def hold(home: Path, name: str, number: int = 0) -> Iterator[None]:
    """Keep a hold in the block; it replaces one of the same name."""
    file = home / name
    file.with_suffix(".new").write_text(str(number))
    file.with_suffix(".new").rename(file)
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def wait_while_held(home: Path, name: str, reached: int = 0, check: Callable[[], None] = lambda: None) -> None:
    """Wait while the home has the hold and its number has been reached; calls `check` meanwhile."""
    while (number := _number(home / name)) is not None and reached >= number:
        check()
        time.sleep(0.02)


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except FileNotFoundError:
        return None
