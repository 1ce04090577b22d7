"""docs/pages.md lists every route of the application."""

import re
from pathlib import Path

from app import changes, downloads, events, find
from speculoos.settings import Settings

DOCS = Path(__file__).resolve().parents[2] / "docs" / "pages.md"


def test_every_route_is_in_the_docs_and_no_other(home: Settings) -> None:
    modules = (events, downloads, changes, find)
    routes = {
        f"{method} {route.path}"
        for router in (module.routes(home) for module in modules)
        for route in router.routes
        for method in route.methods
    }
    documented = set(re.findall(r"^\| `((?:GET|POST|PUT|DELETE) /api/[^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    assert documented == routes
