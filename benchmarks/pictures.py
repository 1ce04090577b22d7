"""Takes the screenshots of README and docs from a running workbench, or of every page for review.

    python -m benchmarks.pictures [NAME …]                  docs/images/NAME.png, all of them without a NAME
    python -m benchmarks.pictures --every-page FOLDER       every page, light and dark, 400, 1024 and 1920 pixels wide

The first starts `speculoos up` in an empty home folder and runs the required jobs, which takes some minutes on two
otherwise idle cores. Texts are greedy and reproducible; speeds are measured. The second shows test rows with invented
figures and is not for docs. Both need a git clone, as they use test tools.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from benchmarks import every_page
from benchmarks.camera import Camera, camera
from models.starter import starter_path
from speculoos.settings import PROJECT_ROOT
from tests.tools.running import Up, wait_for
from tracking import db, queries
from tracking.names import STARTER
from tracking.states import FINISHED
from tracking.tables import Job
from workers.jobs.builtin import BUILT_IN, PROMPTS
from workers.jobs.estimates import PROBE
from workers.jobs.requests import GenerateData, Request
from workers.jobs.submit import submit

IMAGES = PROJECT_ROOT / "docs" / "images"
WIDTH = 1280
QUESTION = "Write a Python function that checks whether a number is even."
MODEL = "starter@starter"


class Scene:
    """A running workbench with the rows that the screenshots show."""

    def __init__(self, up: Up):
        self.settings, self.url = up.settings, up.url
        with db.reading(self.settings) as session:
            self.base = queries.find_base(session, STARTER).id

    @cached_property
    def answers(self) -> str:
        """Id of a data set with answers of the starter, which a job creates."""
        prompts = self._finished(BUILT_IN[PROMPTS].request())
        return self._finished(GenerateData(prompts, self.base, limit=120, max_tokens=96, batch_size=32))

    def _finished(self, request: Request) -> str:
        """Run a job; returns the id of its data set."""
        job = submit(request, settings=self.settings)

        def ended() -> bool:
            nonlocal job
            with db.reading(self.settings) as session:
                job = session.get_one(Job, job.id)
            return job.state in FINISHED

        wait_for(ended, job.name, seconds=1800)
        if job.state != "SUCCEEDED":
            raise SystemExit(f"{job.name} is {job.state}: {job.error}")
        return job.request["dataset_id"]


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


def playground(scene: Scene, camera: Camera) -> None:
    """Ask a question, measure plain decoding, and open a step."""
    page = camera.page
    camera.open(f"{scene.url}/playground?model={MODEL}", WIDTH, 960)
    page.locator("#prompt textarea").fill(QUESTION)
    page.locator("#send").click()
    page.locator('.sp-turn[data-state="SUCCEEDED"]').wait_for()
    page.locator("#run-plain").click()
    page.get_by_text("plain, same prompt").wait_for()
    page.locator(".tr-step").nth(12).click()
    page.locator(".sp-side .tr-tree").wait_for()
    camera.scroll_to("#page-playground")


def train(scene: Scene, camera: Camera) -> None:
    """The filled-in form with its review."""
    camera.open(f"{scene.url}/train?data={scene.answers}&base={scene.base}", WIDTH, 900)
    camera.page.locator("#train-review .sp-command").wait_for()


def loss_mask(scene: Scene, camera: Camera) -> None:
    """Rows of a data set with their loss masks."""
    camera.open(f"{scene.url}/data?id={scene.answers}", WIDTH, 320)
    camera.page.locator("#dataset-preview .sp-in-loss").first.wait_for()
    camera.scroll_to("#dataset-preview")


PICTURES: dict[str, Callable[[Scene, Camera], None]] = {
    "playground": playground,
    "loss-mask": loss_mask,
    "train": train,
}


def take(names: list[str], folder: Path) -> None:
    """Write `folder`/NAME.png for each name."""
    with tempfile.TemporaryDirectory() as scratch, running_scene(Path(scratch)) as scene, camera() as browser:
        for name in names:
            PICTURES[name](scene, browser)
            browser.shoot(folder / f"{name}.png")
            print(folder / f"{name}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PICTURES)}; all without one")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the pictures (default: docs/images)")
    parser.add_argument("--every-page", type=Path, metavar="FOLDER", help="every page instead, into this folder")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(PICTURES)):
        parser.error(f"there is no picture {unknown[0]!r}; known are {', '.join(PICTURES)}")
    if options.every_page:
        every_page.take(options.every_page)
    else:
        take(options.names or list(PICTURES), options.out)


if __name__ == "__main__":
    main()
