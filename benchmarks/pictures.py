"""Takes the screenshots of README and docs from a running workbench.

    python -m benchmarks.pictures [NAME …]      docs/images/NAME.png, all of them without a NAME

Starts `speculoos up` in an empty home folder and runs the required jobs, which takes some minutes on two otherwise idle
cores. Texts are greedy and reproducible; speeds are measured. Needs a git clone, as it uses test tools.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from cli.follow import follow
from models.starter import starter_path
from speculoos.settings import PROJECT_ROOT
from tests.browser.furnished import open_page
from tests.tools.browser import HELP, find, launch_options
from tests.tools.running import Up, wait_for
from tracking import db, queries
from tracking.names import STARTER
from workers.jobs.builtin import BUILT_IN, PROMPTS
from workers.jobs.estimates import PROBE
from workers.jobs.requests import GenerateData, Request
from workers.jobs.submit import submit

IMAGES = PROJECT_ROOT / "docs" / "images"
TIMEOUT_MS = 120_000
WIDTH, HEIGHT = 1280, 900
QUESTION = "Write a Python function that checks whether a number is even."
MODEL = "starter@starter"


@contextmanager
def browser_page() -> Iterator[Page]:
    """A page of a headless Chromium without animations. Raises SystemExit if none is found."""
    path = find()
    if path is None:
        raise SystemExit(HELP)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launch_options(path))
        page = browser.new_context(reduced_motion="reduce").new_page()
        page.set_default_timeout(TIMEOUT_MS)
        yield page
        browser.close()


def open_light(page: Page, url: str, width: int, height: int) -> None:
    """Open `url` in a window of this size with the light theme."""
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": width, "height": height})
    open_page(page, url)


def scroll_to(page: Page, selector: str) -> None:
    """Scroll an element to the top of the window."""
    page.locator(selector).first.evaluate("node => node.scrollIntoView({block: 'start'})")


def shoot(page: Page, file: Path) -> None:
    """Write a screenshot of the window as a PNG with 256 colors, a third of the size."""
    data = page.screenshot(animations="disabled", caret="hide")
    image = Image.open(BytesIO(data)).convert("RGB").quantize(256, dither=Image.Dither.NONE)
    file.parent.mkdir(parents=True, exist_ok=True)
    image.save(file, optimize=True)
    print(file)


class Scene:
    """A running workbench with the rows that the screenshots show."""

    def __init__(self, up: Up):
        self.settings, self.url = up.settings, up.url
        with db.reading(self.settings) as session:
            self.base = queries.find_base(session, STARTER).id

    @cached_property
    def answers(self) -> str:
        """Id of a dataset with answers of the starter, which a job creates."""
        prompts = self._run(BUILT_IN[PROMPTS].request())
        return self._run(GenerateData(source_id=prompts, base_id=self.base, limit=120, max_tokens=96, batch_size=32))

    def _run(self, request: Request) -> str:
        """Run a job; returns the id of its dataset."""
        return follow(self.settings, submit(request, settings=self.settings).id).request["dataset_id"]


@contextmanager
def running_scene(folder: Path) -> Iterator[Scene]:
    """`speculoos up` in an empty home folder with the starter and all cores, after its machine probe."""
    up = Up(folder / "home", SPECULOOS_STARTER=str(starter_path()), OMP_NUM_THREADS=str(os.cpu_count()))
    try:
        up.start()
        wait_for((up.home / PROBE).exists, "the probe of the machine")
        yield Scene(up)
    finally:
        up.end()
        shutil.rmtree(up.settings.run_dir, ignore_errors=True)


def playground(scene: Scene, page: Page) -> None:
    """Ask a question, measure plain decoding, and open a step."""
    open_light(page, f"{scene.url}/playground?model={MODEL}", WIDTH, 960)
    page.locator("#prompt textarea").fill(QUESTION)
    page.locator("#send").click()
    page.locator('.sp-turn[data-state="SUCCEEDED"]').wait_for()
    page.locator("#run-plain").click()
    page.get_by_text("baseline, same prompt").wait_for()
    page.locator(".tr-step").nth(12).click()
    page.locator(".sp-side .tr-tree").wait_for()
    scroll_to(page, "#page-playground")


def train(scene: Scene, page: Page) -> None:
    """The filled-in form with its review."""
    open_light(page, f"{scene.url}/runs/new?data={scene.answers}&base={scene.base}", WIDTH, HEIGHT)
    page.locator("#train-review .sp-command").wait_for()


def loss_mask(scene: Scene, page: Page) -> None:
    """Rows of a dataset with their loss masks."""
    open_light(page, f"{scene.url}/data?id={scene.answers}", WIDTH, 320)
    page.locator("#dataset-preview .sp-in-loss").first.wait_for()
    scroll_to(page, "#dataset-preview")


PICTURES: dict[str, Callable[[Scene, Page], None]] = {"playground": playground, "loss-mask": loss_mask, "train": train}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}; all without one")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(PICTURES)):
        parser.error(f"there is no picture {unknown[0]!r}; known are {', '.join(PICTURES)}")
    with tempfile.TemporaryDirectory() as scratch, running_scene(Path(scratch)) as scene, browser_page() as page:
        for name in options.names or PICTURES:
            PICTURES[name](scene, page)
            shoot(page, IMAGES / f"{name}.png")


if __name__ == "__main__":
    main()
