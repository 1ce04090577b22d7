"""The leaderboard in a browser: sorting and filters are in the address, an evaluation opens and is deleted, a file is
downloaded, and a matrix starts from its form."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import open_drawn
from tests.browser.services import HOSTILE
from tests.browser.workbench import Workbench, add_base, add_heads
from tracking.db import reading
from tracking.tables import Evaluation, Job

pytestmark = pytest.mark.browser


def fill(workbench: Workbench, base: str, heads: str) -> None:
    """Add three evaluations of a checkpoint."""
    for number, (questions, speedup) in enumerate((("GSM8K", 1.25), ("HumanEval", 2.5), (f"Mine {HOSTILE}", 1.75))):
        values = {"state": "ready", "base_id": base, "checkpoint_id": heads, "questions": questions}
        values |= {"speedup": speedup, "speedup_low": speedup - 0.1, "speedup_high": speedup + 0.1, "tau": 3 - speedup}
        values |= {
            "suite": "own",
            "machine": "A processor",
            "result": {"prompts": 5},
            "config": {"base_id": base, "limit": 5},
        }
        workbench.add(Evaluation(name=f"e{number}", **values))


def questions(page: Page) -> list[str]:
    """The questions of the rows that are shown, in order."""
    return page.locator("#evaluations-table tbody td:nth-child(2)").all_inner_texts()


def test_the_leaderboard_sorts_narrows_opens_and_deletes(workbench: Workbench, page: Page) -> None:
    base = add_base(workbench, "measured")
    fill(workbench, base, add_heads(workbench, base, "drafted"))
    page.goto(f"{workbench.url}/results?base={base}")
    expect(page.locator("#evaluations-table tbody tr")).to_have_count(3)
    assert questions(page) == [f"{name}\n5 questions" for name in ("HumanEval", f"Mine {HOSTILE}", "GSM8K")]
    expect(page.locator("#evaluations-table .sp-interval-bar")).to_have_count(1)
    expect(page.locator("#evaluations-table")).to_contain_text("Not compared: 2 with other settings")
    page.locator("#evaluations-table th a", has_text="τ").click()
    expect(page.locator("#evaluations-table tbody td:nth-child(2)").first).to_contain_text("GSM8K")
    expect(page).to_have_url(re.compile(rf"base={base}&sort=-tau$"))
    page.get_by_role("button", name="More filters").click()
    page.locator("#evaluations-by-suite input").click()
    page.get_by_role("option", name="HumanEval").click()
    expect(page.locator("#evaluations-table tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile("suite=HumanEval"))
    page.reload()
    expect(page.locator("#evaluations-table tbody tr")).to_have_count(1)
    with page.expect_download() as saved:
        page.locator("#evaluations-table a", has_text="CSV").click()
    assert "HumanEval" in saved.value.path().read_text()
    open_drawn(page, f"{workbench.url}/results?base={base}&sort=-tau")
    page.locator("#evaluations-table a", has_text="measured@drafted").first.click()
    expect(page.locator("#evaluation-one")).to_contain_text("1.25 ×")
    expect(page.locator("#evaluation-one .sp-command")).to_contain_text("speculoos evaluate")
    page.get_by_role("button", name="Name, note, delete").click()
    page.locator("#evaluation-delete").click()
    expect(page.locator("#evaluation-question")).to_contain_text("Nothing depends on this evaluation")
    page.locator("#evaluation-really").click()
    expect(page.locator("#evaluations-table tbody tr")).to_have_count(2)
    assert page.url.endswith("/results"), "the deleted one is not asked for again"


def test_a_matrix_starts_from_its_form(workbench: Workbench, page: Page) -> None:
    base = add_base(workbench, "for a matrix")
    add_heads(workbench, base, "draft")
    open_drawn(page, f"{workbench.url}/results")
    page.get_by_role("button", name="Evaluate drafts").click()
    page.locator("#matrix-temperatures textarea, #matrix-temperatures input").first.fill("0, 1")
    page.locator("#matrix-trees textarea").fill("own\nchain 2")
    expect(page.locator("#matrix-review")).to_contain_text("4 evaluations")
    expect(page.locator("#matrix-review .sp-command")).to_contain_text("speculoos matrix --model")
    page.locator("#matrix-start").click()
    expect(page).to_have_url(re.compile(r"/runs\?id="))
    expect(page.locator("#job-head")).to_contain_text("Evaluate 1 model on 1 suite")
    with reading(workbench.settings) as session:
        job = session.get_one(Job, page.url.rpartition("=")[2])
        assert (job.kind, job.request["temperatures"], len(job.request["drafting"])) == ("matrix", [0.0, 1.0], 2)
