"""The pictures of README and docs, taken of a workbench that did the work they show; or of every page, to be looked at.

    python -m benchmarks.pictures [NAME …]                  docs/images/NAME.png, all of them without a NAME
    python -m benchmarks.pictures --every-page FOLDER       every page, light and dark, 400, 1024 and 1920 pixels wide

The first starts `speculoos up` in an empty home and has it do what the pictures need: answer questions and prompts.
Some minutes on two cores, with nothing else running, since the figures in them are measured. Texts are greedy, so the
same; speeds are of the machine. The second looks at rows made for tests, whose figures are made up, so its pictures are
for nobody's docs. Both need a clone: they use the tests' tools.
"""

import argparse
import tempfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from benchmarks import every_page
from benchmarks.camera import Camera, camera
from benchmarks.estimates import Home, workbench
from speculoos.settings import CLONE
from workers.jobs.builtin import BUILT_IN, PROMPTS
from workers.jobs.requests import GenerateData

IMAGES = CLONE / "docs" / "images"
WIDTH = 1280
QUESTION = "Write a Python function that checks whether a number is even."
MODEL = "starter@starter"


class Scene:
    """What the pictures show: rows that jobs of a running workbench made, each when it is first asked for."""

    def __init__(self, home: Home):
        self.home = home
        self.url = f"http://127.0.0.1:{home.settings.port}"

    @cached_property
    def answers(self) -> str:
        """A data set that the starter answered."""
        prompts = self.home.do("import", BUILT_IN[PROMPTS].request())["request"]["dataset_id"]
        wanted = GenerateData(prompts, self.home.base, limit=120, max_tokens=96, batch_size=32)
        return self.home.do("generate", wanted)["request"]["dataset_id"]


def playground(scene: Scene, camera: Camera) -> None:
    """A question is asked, plain decoding of it measured, and a step opened."""
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
    """The form, filled in, with what it comes to beside it."""
    camera.open(f"{scene.url}/train?data={scene.answers}&base={scene.home.base}", WIDTH, 900)
    camera.page.locator("#train-review .sp-command").wait_for()


def loss_mask(scene: Scene, camera: Camera) -> None:
    """Rows of a data set, with the tokens that a draft learns."""
    camera.open(f"{scene.url}/data?id={scene.answers}", WIDTH, 320)
    camera.page.locator("#dataset-preview .sp-in-loss").first.wait_for()
    camera.scroll_to("#dataset-preview")


PICTURES: dict[str, Callable[[Scene, Camera], None]] = {
    "playground": playground,
    "loss-mask": loss_mask,
    "train": train,
}


def take(names: list[str], folder: Path) -> None:
    """Write `folder`/NAME.png for each of the names."""
    with tempfile.TemporaryDirectory() as place, workbench(Path(place)) as home, camera() as eye:
        scene = Scene(home)
        for name in names:
            PICTURES[name](scene, eye)
            eye.shoot(folder / f"{name}.png")
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
