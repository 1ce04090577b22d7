"""The fixtures of the job tests, for the drills, and a home under a real `speculoos up`."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tools.running import Up
from tests.workers.conftest import bench, broker  # noqa: F401


@pytest.fixture
def up(tmp_path: Path, clean_environment: None) -> Iterator[Up]:
    """A home that is not started yet. Its processes are ended after the test."""
    workbench = Up(tmp_path / "home")
    yield workbench
    workbench.end()
    shutil.rmtree(workbench.settings.run_dir, ignore_errors=True)
