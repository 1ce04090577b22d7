"""docs/pages.md names every route of our own."""

import re
from pathlib import Path

from app import changes, downloads, events
from speculoos.settings import Settings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pages.md"


def test_every_route_is_in_the_docs_and_no_other(home: Settings) -> None:
    rooms = (events, downloads, changes)
    made = {
        f"{method} {route.path}"
        for router in (room.routes(home) for room in rooms)
        for route in router.routes
        for method in route.methods
    }
    written = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) /api/[^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    assert written == made
