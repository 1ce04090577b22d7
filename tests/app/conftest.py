"""Fixtures shared by the page tests."""

import pytest

from speculoos.settings import Settings, load
from tests.tools.databases import migrate


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings of a migrated home without a login, shared by all tests of a file."""
    settings = load({"SPECULOOS_HOME": str(tmp_path_factory.mktemp("pages") / "home")})
    migrate(settings)
    return settings
