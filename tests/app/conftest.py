"""What several page tests start from."""

import pytest

from speculoos.settings import Settings, load
from tests.tools.databases import migrate


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A migrated home that all tests of a file share, without a login."""
    made = load({"SPECULOOS_HOME": str(tmp_path_factory.mktemp("pages") / "home")})
    migrate(made)
    return made
