"""A server of the tiny base's hidden states in another process, and a reporter that records what a training reports."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from speculoos.reporting import SilentReporter
from tests.tools.state_server import StateProcess


class Notebook(SilentReporter):
    """Records what is reported, in order."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}
        self.lines: list[str] = []
        self.notes: list[str] = []

    def metrics(self, step: int, values: dict[str, float]) -> None:
        self.values.setdefault(step, {}).update(values)

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        self.notes.append(note)

    def log(self, message: str, level: str = "info") -> None:
        self.lines.append(message)

    def curve(self, name: str = "train/loss") -> list[float]:
        return [values[name] for _, values in sorted(self.values.items()) if name in values]


@pytest.fixture
def notes() -> Notebook:
    return Notebook()


@pytest.fixture(scope="session")
def served(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateProcess]:
    """The tiny base's hidden states, from another process."""
    with StateProcess(tiny_base, tmp_path_factory.mktemp("home")) as process:
        yield process
