"""What several page tests start from."""

import pytest

from speculoos.settings import Settings, load
from tracking.db import upgrade


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A migrated home that all tests of a file share, without a login."""
    made = load({"SPECULOOS_HOME": str(tmp_path_factory.mktemp("pages") / "home")})
    upgrade(made)
    return made
