"""Pictures of every page and of one thing of each kind, light and dark, at three widths, with what can be unfolded.

They show rows made for tests, whose figures are made up: for people to look at, not for docs.
"""

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from playwright.sync_api import Page

from app.views.shell import BESIDE, NAV
from benchmarks.camera import Camera, camera
from tests.browser.furnished import Furnished, furnish

WIDTHS = (400, 1024, 1920)
THEMES = ("light", "dark")
HEIGHT = 900
FOLDED = ", ".join(
    f".sp-page {what}:visible"
    for what in (
        "button.label-wrap:not(.open)",
        'button[aria-expanded="false"]:not([role])',
        "details:not([open]) > summary",
    )
)
TABS = '.sp-page button[role="tab"]:visible'
SETTLED_MS = 250
LAYERS = 2
"""What can be unfolded may be folded in something."""


def take(folder: Path) -> None:
    """Write `folder`/PAGE-WIDTH-THEME.png, and index.html that shows them side by side."""
    with tempfile.TemporaryDirectory() as place, camera() as eye:
        made = furnish(Path(place) / "home")
        try:
            names = [name for label, url in addresses(made).items() for name in look(eye, url, label, folder)]
        finally:
            made.bench.stop()
    (folder / "index.html").write_text(index(names), encoding="utf-8")
    print(folder / "index.html")


def addresses(made: Furnished) -> dict[str, str]:
    """What there is to look at: name → address."""
    return {label: made.url + path for label, path in (*NAV, *BESIDE, *made.things.items())}


def look(eye: Camera, url: str, label: str, folder: Path, widths: Sequence[int] = WIDTHS) -> list[str]:
    """Take the pictures of one address; their names without width and theme."""
    names = []
    for width in widths:
        eye.open(url, width, HEIGHT)
        names += _views(eye, label.lower().replace(" ", "-"), width, folder)
    return list(dict.fromkeys(names))


def _views(eye: Camera, name: str, width: int, folder: Path) -> list[str]:
    """As it opens, each of its other tabs, and all unfolded."""
    _both(eye, name, width, folder)
    names = [name]
    for number in range(1, eye.page.locator(TABS).count()):
        eye.page.locator(TABS).nth(number).click()
        names.append(f"{name}-tab-{number + 1}")
        _both(eye, names[-1], width, folder)
    if unfold(eye.page):
        names.append(f"{name}-unfolded")
        _both(eye, names[-1], width, folder)
    return names


def _both(eye: Camera, name: str, width: int, folder: Path) -> None:
    eye.page.set_viewport_size({"width": width, "height": HEIGHT})
    for theme in THEMES:
        eye.page.emulate_media(color_scheme=theme)
        eye.page.wait_for_timeout(SETTLED_MS)
        eye.shoot(folder / f"{name}-{width}-{theme}.png", whole=True)
    eye.page.emulate_media(color_scheme=THEMES[0])


def unfold(page: Page) -> int:
    """Open whatever is folded; how many there were."""
    opened = 0
    for _ in range(LAYERS):
        for part in page.locator(FOLDED).element_handles():
            part.click()
            opened += 1
        page.wait_for_timeout(SETTLED_MS)
    return opened


def index(names: Sequence[str]) -> str:
    """All pictures of a name in a row."""
    rows = [f"<h2>{escape(name)}</h2><p>{_pictures(name)}</p>" for name in names]
    return f'<!doctype html><meta charset="utf-8"><title>Every page</title>{"".join(rows)}'


def _pictures(name: str) -> str:
    return "".join(_picture(name, width, theme) for theme in THEMES for width in WIDTHS)


def _picture(name: str, width: int, theme: str) -> str:
    file = escape(f"{name}-{width}-{theme}.png", quote=True)
    return f'<a href="{file}"><img loading="lazy" src="{file}" alt="{file}" height="420"></a> '
