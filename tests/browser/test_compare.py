"""Compare in a real browser: columns are measured one after the other, compared, and survive a reload."""

import re

import pytest
from playwright.sync_api import Page, expect

from speculoos.cpu_load import are_loads_comparable
from tests.browser.furnished import open_drawn
from tests.browser.services import limit_tokens
from tests.browser.workbench import Workbench
from tracking import runs
from tracking.db import reading, writing

pytestmark = pytest.mark.browser


def wait_finished(page: Page) -> None:
    """Wait for the end of the comparison, or fail with what the page says instead."""
    ended = page.locator('[data-sp="compare"][data-finished="yes"]')
    expect(ended.or_(page.locator("#problem .sp-notice")).first).to_be_attached(timeout=240_000)
    assert ended.count(), page.locator("#problem").inner_text()


def columns(workbench: Workbench, page: Page) -> list[dict]:
    group = re.search(r"comparison=([0-9a-f]{32})", page.url).group(1)
    with reading(workbench.settings) as rows:
        return runs.compare(rows, group)


def test_plain_and_heads_are_measured_alone_say_the_same_and_are_replayed(page: Page, workbench: Workbench) -> None:
    page.goto(f"{workbench.url}/playground/compare?models=tiny&models=tiny@heads&prompt=hello%20fox")
    expect(page.locator("#compare-prompt textarea")).to_have_value("hello fox")
    limit_tokens(page, 128)
    page.locator("#compare-run").click()
    wait_finished(page)
    plain, heads = columns(workbench, page)
    assert (plain["model"], heads["model"]) == ("tiny", "tiny@heads")
    first, second = sorted((plain, heads), key=lambda column: column["created_at"])
    assert first["finished_at"] <= second["finished_at"]
    assert heads["identical"]
    shown = page.locator(".sp-column")
    badges = ["measured first", "measured second"] if first is plain else ["measured second", "measured first"]
    assert shown.locator(".sp-badge").all_inner_texts() == badges
    expect(shown.nth(1).locator(".sp-match")).to_contain_text("same output, token for token")
    ratio = heads["summary"]["decode_tokens_per_second"] / plain["summary"]["decode_tokens_per_second"]
    comparable = are_loads_comparable(plain["summary"]["other_load"], heads["summary"]["other_load"])
    expect(shown.nth(1).locator('[data-figure="speedup"]')).to_have_text(
        f"{ratio:.2f}×" if comparable else f"≈ {ratio:.2f}×"
    )
    texts = shown.locator(".tr-tokens").evaluate_all("nodes => nodes.map(n => n.textContent)")
    assert texts == [plain["text"], heads["text"]]
    page.locator("#replay").click()
    expect(page.locator("#replay")).to_be_enabled(timeout=30_000)
    assert shown.locator(".tr-tokens").evaluate_all("nodes => nodes.map(n => n.textContent)") == texts
    shown.nth(1).locator(".tr-step").nth(1).click()
    expect(page.get_by_role("dialog").get_by_role("tree", name="Drafted tree")).to_be_visible()


def test_a_comparison_survives_a_reload_and_is_listed(page: Page, workbench: Workbench) -> None:
    open_drawn(page, f"{workbench.url}/playground/compare?models=tiny&models=tiny:ngram&prompt=again")
    expect(page.locator("#compare-prompt textarea")).to_have_value("again")
    expect(page.locator("#targets")).to_contain_text("lookup")
    limit_tokens(page)
    page.locator("#compare-prompt textarea").press("Control+Enter")
    wait_finished(page)
    before = page.locator(".sp-column-figures").all_inner_texts()
    page.reload()
    wait_finished(page)
    expect(page.locator(".sp-question")).to_have_text("again")
    assert page.locator(".sp-column-figures").all_inner_texts() == before
    expect(page.locator("#recent a", has_text="again").first).to_be_visible()
    group = re.search(r"comparison=([0-9a-f]{32})", page.url).group(1)
    page.locator("#delete-comparison").click()
    expect(page.locator("#delete-comparison")).to_have_text("Delete permanently?")
    page.locator("#delete-comparison").click()
    expect(page.locator(".sp-empty h2")).to_have_text("Deleted")
    expect(page.locator(f'#recent a[href$="{group}"]')).to_have_count(0)
    assert "comparison" not in page.url
    page.reload()
    expect(page.locator(".sp-empty h2")).to_have_text("Nothing compared yet")
    expect(page.locator(f'#recent a[href$="{group}"]')).to_have_count(0)


def test_the_first_difference_is_marked(page: Page, workbench: Workbench) -> None:
    """Two columns that were stored with different tokens."""
    request = {"messages": [{"role": "user", "content": "differ"}], "max_tokens": 8}
    with writing(workbench.settings) as rows:
        created = runs.create_comparison(rows, [("tiny", request), ("tiny@heads", request)])
        for run, ids in zip(created, ([5, 6, 7], [5, 9, 7]), strict=True):
            runs.start_run(rows, run.id)
            runs.add_steps(rows, run.id, [plain_step(i, number) for i, number in enumerate(ids)])
            runs.finish_run(rows, run.id, "abc", {})
        group = created[0].group_id
    page.goto(f"{workbench.url}/playground/compare?comparison={group}")
    wait_finished(page)
    other = page.locator(".sp-column").nth(1)
    expect(other.locator(".sp-match")).to_contain_text("differs from the first column at token 2")
    expect(other.locator(".tr-diverges")).to_have_text("9")


def test_a_stopped_column_says_so(page: Page, workbench: Workbench) -> None:
    request = {"messages": [{"role": "user", "content": "stop <b>me</b>"}], "max_tokens": 12}
    with writing(workbench.settings) as rows:
        created = runs.create_comparison(rows, [("tiny", request), ("tiny@heads", request)])
        runs.start_run(rows, created[0].id)
        runs.add_steps(rows, created[0].id, [plain_step(0, 7)])
        runs.finish_run(rows, created[0].id, "a", {"decode_tokens_per_second": 5.0})
        runs.cancel_run(rows, created[1].id)
    page.goto(f"{workbench.url}/playground/compare?comparison={created[0].group_id}")
    wait_finished(page)
    undone = page.locator(".sp-column").nth(1)
    expect(undone).to_contain_text("Stopped before it was measured")
    expect(page.locator(".sp-match").first).to_have_text("not compared: column 2 is not measured")


def plain_step(index: int, token: int) -> dict:
    emitted = {"id": token, "text": str(token), "origin": "plain", "depth": 0, "rank": 0}
    draft = {"tokens": [], "texts": [], "parents": [], "depths": [], "ranks": [], "logprobs": []}
    ms = {"draft": 0, "verify": 1, "other": 0}
    step = {"index": index, "kind": "plain", "tokens": [emitted], "draft": draft, "accepted": [], "counted": True}
    return {**step, "finish": None, "ms": ms}


def test_figures_taken_beside_a_job_say_so(page: Page, workbench: Workbench) -> None:
    request = {"messages": [{"role": "user", "content": "beside"}]}
    with writing(workbench.settings) as rows:
        created = runs.create_comparison(rows, [("tiny", request), ("tiny@heads", request)])
        for run in created:
            runs.start_run(rows, run.id)
            runs.finish_run(rows, run.id, "", {"shared_with": "train <b>heads</b>", "notices": []})
    page.goto(f"{workbench.url}/playground/compare?comparison={created[0].group_id}")
    wait_finished(page)
    expect(page.locator(".sp-column-notes").first).to_contain_text("while the job “train <b>heads</b>” used")
