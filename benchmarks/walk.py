"""The way of a newcomer, walked in a headless browser: how many clicks and seconds to what the workbench is for.

    python -m benchmarks.walk --json FILE

`speculoos up` in an empty home with the starter, then by mouse and keyboard alone: from Home to a coloured answer, a
second question, the quickstart's start (ended at once), and from a file of 40 prompts to an own draft that is measured.
A click on a file chooser counts; typing a question and pressing Enter counts as one. Nothing else may run on the
machine; about ten minutes. Needs a clone: it uses the tests' tools.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect
from sqlalchemy import select

from benchmarks.camera import camera
from benchmarks.estimates import Home, workbench
from benchmarks.report import conditions, finish, load_average
from speculoos.settings import CLONE
from tests.tools.running import wait_for
from tracking import jobs
from tracking.db import reading, writing
from tracking.states import FINISHED
from tracking.tables import Job

PROMPTS, ROWS = CLONE / "corpus" / "quickstart_prompts.jsonl", 40
SIZE = {"width": 1280, "height": 900}
MINUTE = 60_000.0
LONG = 15 * MINUTE
"""Milliseconds for a job."""
ALLOWED = {
    "first coloured answer": (3, 8.0),
    "second question": (1, 0.5),
    "quickstart": (1, None),
    "own data to a measured draft": (12, None),
}
"""Most clicks, and most seconds from the last of them to the first coloured token."""


@dataclass
class Walk:
    """One way: what was clicked, and when the last click was."""

    page: Page
    clicks: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    last: float = 0.0

    def click(self, place: Locator, what: str) -> None:
        """A click; waits until the place can be clicked, as a person does."""
        place.wait_for(state="visible", timeout=MINUTE)
        self._count(what)
        place.click()

    def press(self, place: Locator, key: str, what: str) -> None:
        """A key in place of a click."""
        self._count(what)
        place.press(key)

    def file(self, place: Locator, path: Path) -> None:
        """A file chosen in the browser's dialog."""
        self._count(f"choose {path.name}")
        place.set_input_files(path)

    def row(self, name: str, seconds: float) -> dict[str, Any]:
        """Of the table; `seconds` are those from the last click to what was wanted."""
        return {
            **{"way": name, "clicks": len(self.clicks), "clicked": self.clicks, "seconds": round(seconds, 2)},
            "seconds_in_all": round(time.monotonic() - self.began, 1),
        }

    def _count(self, what: str) -> None:
        self.clicks.append(what)
        self.last = time.monotonic()


def first_answer(page: Page, url: str) -> dict[str, Any]:
    """From Home to the first coloured token; the answer is waited for."""
    page.goto(url)
    walk = Walk(page)
    walk.click(page.get_by_role("link", name="Chat with the starter").first, "Chat with the starter")
    prompt = page.locator("#prompt textarea")
    prompt.wait_for(state="visible")
    prompt.fill("Explain in three sentences why the sky is blue.")
    walk.press(prompt, "Enter", "Enter")
    seconds = coloured(page, walk, 1)
    return walk.row("first coloured answer", seconds)


def second_question(page: Page) -> dict[str, Any]:
    """In the same chat, warm."""
    walk = Walk(page)
    prompt = page.locator("#prompt textarea")
    prompt.fill("And why is it red in the evening?")
    walk.press(prompt, "Enter", "Enter")
    return walk.row("second question", coloured(page, walk, 2))


def coloured(page: Page, walk: Walk, turn: int) -> float:
    """Seconds from the last click to the first token of answer number `turn`; waits for its end."""
    page.locator(f".sp-turn >> nth={turn - 1}").locator(".tr-token").first.wait_for(timeout=MINUTE)
    seconds = time.monotonic() - walk.last
    expect(page.locator('.sp-turn[data-state="SUCCEEDED"]')).to_have_count(turn, timeout=2 * MINUTE)
    return seconds


def quickstart(page: Page, url: str, home: Home) -> dict[str, Any]:
    """Its button; begun is enough here (`speculoos quickstart` measures the rest)."""
    page.goto(url)
    walk = Walk(page)
    walk.click(page.locator("#quickstart-start"), "Start the quickstart")
    page.locator('[data-state="RUNNING"]').first.wait_for(timeout=MINUTE)
    row = walk.row("quickstart", time.monotonic() - walk.last)
    left = running(home)
    with writing(home.settings) as session:
        for job_id in left:
            jobs.request_cancel(session, job_id)
    wait_for(lambda: not running(home), "the end of the quickstart that was begun")
    return row


def running(home: Home) -> list[str]:
    """Ids of jobs that have not ended, the last of a chain first."""
    query = select(Job.id).where(Job.state.not_in(FINISHED)).order_by(Job.created_at.desc())
    with reading(home.settings) as session:
        return list(session.scalars(query))


def own_draft(page: Page, url: str, file: Path) -> dict[str, Any]:
    """From a file of prompts to a measured draft, with what the forms suggest."""
    page.goto(url)
    walk = Walk(page)
    walk.click(page.get_by_role("link", name="Data", exact=True).first, "Data")
    walk.click(page.get_by_role("button", name="Import a file").first, "Import a file")
    page.locator("#data-upload").wait_for(state="visible")
    walk.file(page.locator("#data-upload input[type=file]"), file)
    expect(page.locator(f'#data-upload a[href$="{file.name}"]')).to_be_visible(timeout=MINUTE)
    walk.click(page.locator("#data-submit"), "Import")
    expect(page.locator('#dataset-head [data-state="ready"]')).to_be_visible(timeout=LONG)
    expect(page.locator("#generate-review .sp-command")).to_be_visible(timeout=MINUTE)
    walk.click(page.locator("#generate-start"), "Start generating")
    ended(page)
    walk.click(page.get_by_role("link", name="Open it"), "Open it")
    walk.click(page.get_by_role("link", name="Train a draft on it"), "Train a draft on it")
    expect(page.locator("#train-review .sp-command")).to_be_visible(timeout=MINUTE)
    walk.click(page.locator("#train-start"), "Start training")
    ended(page)
    page.locator("#verdict", has_text="on questions").wait_for(timeout=LONG)
    return walk.row("own data to a measured draft", time.monotonic() - walk.last) | {
        "verdict": page.locator("#verdict").inner_text()
    }


def ways(page: Page, url: str, home: Home, prompts: Path) -> Iterator[dict[str, Any]]:
    """One after the other."""
    yield first_answer(page, url)
    yield second_question(page)
    yield quickstart(page, url, home)
    yield own_draft(page, url, prompts)


def ended(page: Page) -> None:
    """Wait for the open job's end, and that it is a good one."""
    page.wait_for_url("**/jobs?id=*", timeout=MINUTE)
    expect(page.locator('#job-head [data-state="SUCCEEDED"]')).to_be_visible(timeout=LONG)


def keeps(row: dict[str, Any]) -> bool:
    """Whether it is within what is claimed."""
    clicks, seconds = ALLOWED[row["way"]]
    return row["clicks"] <= clicks and (seconds is None or row["seconds"] <= seconds)


def table(rows: list[dict[str, Any]]) -> str:
    head = [
        "| way | clicks | seconds after the last | in all | claimed | holds |",
        "| --- | --: | --: | --: | --- | --- |",
    ]
    for row in rows:
        clicks, seconds = ALLOWED[row["way"]]
        claim = f"{clicks} clicks" + (f", {seconds:g} s" if seconds else "")
        figures = f"{row['clicks']} | {row['seconds']:.2f} | {row['seconds_in_all']:.1f}"
        head.append(f"| {row['way']} | {figures} | {claim} | {'yes' if keeps(row) else 'no'} |")
    return "\n".join(head)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    file, before = parser.parse_args().json, load_average()
    with tempfile.TemporaryDirectory() as folder, workbench(Path(folder)) as home, camera() as eye:
        prompts = Path(folder) / "my-prompts.jsonl"
        prompts.write_text("".join(f"{line}\n" for line in PROMPTS.read_text(encoding="utf-8").splitlines()[:ROWS]))
        page, url = eye.page, f"http://127.0.0.1:{home.settings.port}"
        page.set_viewport_size(SIZE)
        rows = []
        for row in ways(page, url, home, prompts):
            rows.append(row)
            print(row, file=sys.stderr, flush=True)
    finish({**conditions(before), "ways": rows}, table(rows), file)
    return 0 if all(map(keeps, rows)) else 1


if __name__ == "__main__":
    raise SystemExit(main())
