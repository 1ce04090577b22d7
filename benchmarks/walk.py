"""Clicks and seconds of a new user, in a headless browser, to what the workbench is for.

    python -m benchmarks.walk [--only chat,draft,quickstart] [--json FILE]

`speculoos up` in an empty home folder with the starter, then by mouse and keyboard: from Home to the first colored
token, to a speedup, from a file of own prompts to a measured draft with its download, and to a running quickstart.
Choosing a file counts as a click; typing a prompt and pressing Enter counts as one. Takes about ten minutes on an idle
machine. Needs a git clone, as it uses test tools.
"""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page

from benchmarks.pictures import browser_page
from benchmarks.report import conditions, finish, goal_lines, load_average, make_parser, table_lines
from models.starter import starter_path
from speculoos.settings import PROJECT_ROOT
from tests.browser.furnished import open_page
from tests.tools.running import Up

PROMPTS = PROJECT_ROOT / "corpus" / "quickstart_prompts.jsonl"
MINUTE = 60_000.0
LONGEST = 20 * MINUTE
"""Maximum milliseconds until a guided run has ended."""


@dataclass
class Walk:
    """One path: its clicks and the time of the last one."""

    name: str
    page: Page
    clicks: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    last: float = 0.0

    def click(self, target: Locator, what: str) -> None:
        """Click `target` once it is visible and enabled."""
        target.wait_for(state="visible", timeout=MINUTE)
        self._count(what)
        target.click()

    def send(self, text: str) -> None:
        """Type a prompt and press Enter."""
        prompt = self.page.locator("#prompt textarea")
        prompt.wait_for(state="visible")
        prompt.fill(text)
        self._count("Enter")
        prompt.press("Enter")

    def upload(self, field_: Locator, path: Path) -> None:
        """Choose a file in the dialog of the browser."""
        self._count(f"choose {path.name}")
        field_.set_input_files(path)

    def result(self) -> dict[str, Any]:
        """The row of the table. Call it when the goal is on the page."""
        now = time.monotonic()
        seconds = {"after_the_last": round(now - self.last, 1), "total": round(now - self.began, 1)}
        return {"path": self.name, "clicks": len(self.clicks), "clicked": self.clicks, **seconds}

    def _count(self, what: str) -> None:
        self.clicks.append(what)
        self.last = time.monotonic()


def chat(page: Page, url: str) -> list[dict[str, Any]]:
    """From Home to the first colored token; then from there to the measured speedup."""
    open_page(page, url)
    walk = Walk("Home to the first colored token", page)
    walk.click(page.locator("#home-chat"), "Chat with the starter")
    walk.send("Explain in three sentences why the sky is blue.")
    page.locator(".sp-conversation .tr-token.sp-draft").first.wait_for(timeout=MINUTE)
    colored = walk.result()
    page.locator('.sp-turn[data-state="SUCCEEDED"]').wait_for(timeout=2 * MINUTE)
    walk.name = "Home to a speedup"
    measure = page.locator(".sp-tile button")
    if measure.first.is_visible():
        walk.click(measure.first, "Measure the speedup")
    page.locator(".sp-tile", has_text=re.compile(r"\d ?×")).first.wait_for(timeout=2 * MINUTE)
    return [colored, walk.result()]


def draft(page: Page, url: str, file: Path) -> list[dict[str, Any]]:
    """From a file of prompts to a measured draft and the download of its export."""
    open_page(page, url)
    walk = Walk("Own prompts to a measured draft and its download", page)
    walk.click(page.locator("#home-guided"), "Make my model faster")
    page.locator("#guided-upload").wait_for(state="visible")
    walk.upload(page.locator("#guided-upload input[type=file]"), file)
    page.locator(f'#guided-upload a[href$="{file.name}"]').wait_for(timeout=MINUTE)
    walk.click(page.locator("#guided-start"), "Start")
    page.locator("#guided-run .sp-step").first.wait_for(timeout=MINUTE)
    page.locator('#guided-run [data-state="ended"]').wait_for(timeout=LONGEST)
    with page.expect_download(timeout=MINUTE) as download:
        walk.click(page.locator("#download-vllm"), "Download for vLLM")
    download.value.path()
    row = walk.result()
    return [{**row, "verdict": page.locator("#verdict .sp-notice").inner_text()}]


def quickstart(page: Page, url: str) -> list[dict[str, Any]]:
    """From Home to the page of the running quickstart."""
    open_page(page, url)
    walk = Walk("Home to a running quickstart", page)
    walk.click(page.locator("#home-quickstart"), "Run the quickstart")
    page.locator('#guided-run .sp-step[data-state="RUNNING"]').first.wait_for(timeout=MINUTE)
    return [walk.result()]


def main() -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--only", default="chat,draft", help="paths to walk: chat, quickstart, draft")
    options, before = parser.parse_args(), load_average()
    folder = Path(tempfile.mkdtemp())
    file = folder / "my-prompts.jsonl"
    shutil.copyfile(PROMPTS, file)
    up = Up(folder / "home", SPECULOOS_STARTER=str(starter_path()), OMP_NUM_THREADS=str(os.cpu_count()))
    paths: dict[str, Callable[[Page], list[dict[str, Any]]]] = {
        "chat": lambda page: chat(page, up.url),
        "quickstart": lambda page: quickstart(page, up.url),
        "draft": lambda page: draft(page, up.url, file),
    }
    try:
        up.start()
        with browser_page() as page:
            page.set_viewport_size({"width": 1280, "height": 900})
            rows = [row for name in options.only.split(",") for row in paths[name](page)]
    finally:
        up.end()
        shutil.rmtree(up.settings.run_dir, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    allowed = {"Home to the first colored token": 2, "Home to a running quickstart": 1}
    allowed["Own prompts to a measured draft and its download"] = 6
    head = "| path | clicks | seconds after the last | total |"
    cells = ([row["path"], row["clicks"], row["after_the_last"], row["total"]] for row in rows)
    goals = {f"{row['path']}: {allowed[row['path']]} clicks": row["clicks"] <= allowed[row["path"]]
             for row in rows if row["path"] in allowed}  # fmt: skip
    lines = [*table_lines(head, cells), "", *goal_lines(goals), *(row["verdict"] for row in rows if "verdict" in row)]
    finish({**conditions(before), "paths": rows}, "\n".join(lines), options.json)
    return 0 if all(goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
