"""Helpers of the browser tests: find controls by id, limit answers, wait for states, write prompts with markup."""

import json
import re
from pathlib import Path

from playwright.sync_api import Locator, Page, expect

from tests.browser.furnished import open_drawn
from tests.browser.workbench import Workbench

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)} {{7*7}}"
SLOW = 240_000
"""Milliseconds for a job on a busy machine."""


def box(page: Page, elem_id: str) -> Locator:
    """The field inside the control with this id."""
    return page.locator(f"#{elem_id} input, #{elem_id} textarea").first


def choose(page: Page, elem_id: str, text: str) -> None:
    """Pick from a dropdown the first option that contains `text`."""
    page.locator(f"#{elem_id} input").click()
    page.get_by_role("option", name=re.compile(re.escape(text))).first.click()


def unfold(page: Page, title: str) -> None:
    """Open an accordion."""
    page.get_by_role("button", name=title).first.click()


def limit_tokens(page: Page, tokens: int = 24) -> None:
    """Limit the next answers of Playground or Compare to a few tokens, in the options drawer."""
    page.locator("#options-open").click()
    field = page.locator("#max-tokens input[type=number]")
    field.fill(str(tokens))
    field.press("Tab")
    page.keyboard.press("Escape")
    expect(field).to_be_hidden()


def job_is(page: Page, state: str) -> None:
    """Wait until the open job is in a state."""
    head_is(page, "job-head", state)


def head_is(page: Page, elem_id: str, state: str) -> None:
    """Wait until the open job, model or dataset is in a state: polled many times a second in the page."""
    shown = "selector => document.querySelector(selector)?.checkVisibility()"
    page.wait_for_function(shown, arg=f'#{elem_id} [data-state="{state}"]', polling=100, timeout=SLOW)


def row_id(page: Page) -> str:
    """The id in the page's URL."""
    return page.url.rpartition("id=")[2]


def write_prompts(folder: Path, count: int = 12, name: str = "prompts.jsonl") -> Path:
    """Good prompts, one of them hostile, and three lines that cannot be used."""
    good = [json.dumps({"prompt": f"Count to {n}."}) for n in range(count - 1)]
    bad = ["{broken", json.dumps({"nothing": HOSTILE}), json.dumps({"prompt": ""})]
    path = folder / name
    path.write_text("\n".join([json.dumps({"prompt": HOSTILE}), *good, *bad]) + "\n")
    return path


def upload(page: Page, path: Path) -> None:
    """Choose a file in the import form and wait until the server has it."""
    page.locator("#data-upload input[type=file]").set_input_files(path)
    expect(page.locator(f'#data-upload a[href$="{path.name}"]')).to_be_visible()


def import_prompts(page: Page, bench: Workbench, path: Path, name: str) -> str:
    """Import a file by upload; returns the dataset's id."""
    open_drawn(page, f"{bench.url}/data")
    unfold(page, "Import a file")
    upload(page, path)
    box(page, "data-new-name").fill(name)
    page.locator("#data-submit").click()
    page.wait_for_url("**/data?id=*")
    head_is(page, "dataset-head", "ready")
    return row_id(page)
