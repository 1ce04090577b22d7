"""The fixtures of the job tests, for the drills; a place for their figures; a home under a real `speculoos up`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.figures import Figures
from tests.tools.running import Up
from tests.workers.conftest import broker  # noqa: F401


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Named after the test. Those of short forms, which have no marker `drill`, are printed only."""
    name = request.node.name.removeprefix("test_")
    return Figures(name, short=request.node.get_closest_marker("drill") is None)


@pytest.fixture
def up(tmp_path: Path, clean_environment: None) -> Iterator[Up]:
    """A home that is not started yet; whatever runs of it is ended after the test."""
    made = Up(tmp_path / "home")
    yield made
    made.end()
    shutil.rmtree(made.settings.run_dir, ignore_errors=True)
