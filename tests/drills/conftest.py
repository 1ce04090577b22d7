"""The fixtures of the job tests, for the long drills."""

from tests.tools.databases import database, postgres  # noqa: F401
from tests.workers.conftest import broker  # noqa: F401
