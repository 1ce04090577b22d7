"""Screenshots of every page and of one object of each kind, light and dark, at three widths, with expanded sections.

They show test rows with invented figures: for review, not for docs.
"""

import tempfile
from collections.abc import Sequence
from html import escape
from pathlib import Path

from playwright.sync_api import Page

from app.views.shell import NAV, TAB_PAGES
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
"""Depth of nested collapsible sections."""


def take(folder: Path) -> None:
    """Write `folder`/PAGE-WIDTH-THEME.png and an index.html that shows all."""
    with tempfile.TemporaryDirectory() as scratch, camera() as browser:
        made = furnish(Path(scratch) / "home")
        try:
            names = [name for label, url in addresses(made).items() for name in look(browser, url, label, folder)]
        finally:
            made.bench.stop()
    (folder / "index.html").write_text(index(names), encoding="utf-8")
    print(folder / "index.html")


def addresses(made: Furnished) -> dict[str, str]:
    """{name: URL} of all pages and objects."""
    return {label: made.url + path for label, path in (*NAV, *TAB_PAGES, *made.things.items())}


def look(browser: Camera, url: str, label: str, folder: Path, widths: Sequence[int] = WIDTHS) -> list[str]:
    """Take the screenshots of one URL; returns their names without width and theme."""
    names = []
    for width in widths:
        browser.open(url, width, HEIGHT)
        names += _views(browser, label.lower().replace(" ", "-"), width, folder)
    return list(dict.fromkeys(names))


def _views(browser: Camera, name: str, width: int, folder: Path) -> list[str]:
    """The page as it opens, each of its other tabs, and all sections expanded."""
    _both(browser, name, width, folder)
    names = [name]
    for number in range(1, browser.page.locator(TABS).count()):
        browser.page.locator(TABS).nth(number).click()
        names.append(f"{name}-tab-{number + 1}")
        _both(browser, names[-1], width, folder)
    if unfold(browser.page):
        names.append(f"{name}-unfolded")
        _both(browser, names[-1], width, folder)
    return names


def _both(browser: Camera, name: str, width: int, folder: Path) -> None:
    browser.page.set_viewport_size({"width": width, "height": HEIGHT})
    for theme in THEMES:
        browser.page.emulate_media(color_scheme=theme)
        browser.page.wait_for_timeout(SETTLED_MS)
        browser.shoot(folder / f"{name}-{width}-{theme}.png", whole=True)
    browser.page.emulate_media(color_scheme=THEMES[0])


def unfold(page: Page) -> int:
    """Expand all collapsed sections; returns their number."""
    opened = 0
    for _ in range(LAYERS):
        for part in page.locator(FOLDED).element_handles():
            part.click()
            opened += 1
        page.wait_for_timeout(SETTLED_MS)
    return opened


def index(names: Sequence[str]) -> str:
    """HTML page with the screenshots of each name in a row."""
    rows = [f"<h2>{escape(name)}</h2><p>{_pictures(name)}</p>" for name in names]
    return f'<!doctype html><meta charset="utf-8"><title>Every page</title>{"".join(rows)}'


def _pictures(name: str) -> str:
    return "".join(_picture(name, width, theme) for theme in THEMES for width in WIDTHS)


def _picture(name: str, width: int, theme: str) -> str:
    file = escape(f"{name}-{width}-{theme}.png", quote=True)
    return f'<a href="{file}"><img loading="lazy" src="{file}" alt="{file}" height="420"></a> '
