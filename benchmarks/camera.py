"""Screenshots of pages with headless Chromium, without animations."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from tests.browser.furnished import open_page
from tests.tools.browser import HELP, find, launch_options

TIMEOUT_MS = 120_000
COLOURS = 256
HIGHEST = 12_000
"""Maximum height of a screenshot in pixels."""


class Camera:
    """One browser page: open a URL, interact with `page`, then `shoot`."""

    def __init__(self, page: Page):
        self.page = page
        page.set_default_timeout(TIMEOUT_MS)

    def open(self, url: str, width: int, height: int) -> None:
        """Open `url` in a window of this size with the light theme."""
        self.page.emulate_media(color_scheme="light")
        self.page.set_viewport_size({"width": width, "height": height})
        open_page(self.page, url)

    def scroll_to(self, selector: str) -> None:
        """Scroll an element to the top of the window."""
        self.page.locator(selector).first.evaluate("node => node.scrollIntoView({block: 'start'})")

    def shoot(self, file: Path, *, whole: bool = False) -> None:
        """Write a screenshot of the window or the `whole` page as a PNG with 256 colours, a third of the size."""
        if whole:
            self._grow()
        data = self.page.screenshot(animations="disabled", caret="hide")
        image = Image.open(BytesIO(data)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        file.parent.mkdir(parents=True, exist_ok=True)
        image.save(file, optimize=True)

    def _grow(self) -> None:
        """Make the window as high as the page, so that elements fixed to its bottom are at the end of the page."""
        size = self.page.viewport_size or {"width": 0, "height": 0}
        height = self.page.evaluate("document.documentElement.scrollHeight")
        self.page.set_viewport_size({**size, "height": max(size["height"], min(height, HIGHEST))})


@contextmanager
def camera() -> Iterator[Camera]:
    """A browser for the block. Raises SystemExit if none is found."""
    path = find()
    if path is None:
        raise SystemExit(HELP)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launch_options(path))
        yield Camera(browser.new_context(reduced_motion="reduce").new_page())
        browser.close()
