"""Trees on the page, in a browser against real servers: a requested tree is drafted and shown with p and q, an
evaluation links to its steps, and a checkpoint's Tree tab is accessible."""

import re

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import Furnished, open_page
from tests.browser.test_every_page import violations
from tests.browser.workbench import Workbench
from tracking import runs
from tracking.db import reading
from tracking.tables import Base, Checkpoint, Evaluation

pytestmark = pytest.mark.browser


def steps_of(workbench: Workbench, run_id: str) -> list[dict]:
    with reading(workbench.settings) as rows:
        return runs.steps_after(rows, run_id, limit=10_000)


def answered(page: Page) -> str:
    done = page.locator('.sp-turn[data-state="SUCCEEDED"]')
    expect(done).to_have_count(1)
    return str(done.get_attribute("data-run"))


def check_both_probabilities(page: Page, step: dict) -> None:
    """The step's tree has q and p of every candidate."""
    page.locator(f'.tr-step[data-step="{step["index"]}"]').first.click()
    detail = page.locator(".sp-detail")
    for name in ("q", "p"):
        expect(detail.locator(f'.tr-prob[data-of="{name}"]')).to_have_count(len(step["draft"]["tokens"]))


def test_a_tree_that_is_typed_is_drafted_and_shown_with_both_probabilities(page: Page, workbench: Workbench) -> None:
    page.goto(f"{workbench.url}/playground?model=tiny@heads&tree=tree%203x2")
    expect(page.locator("#draft input")).to_have_value(re.compile("heads"))
    page.locator("#options-open").click()
    box = page.locator("#tree :is(textarea, input)").first
    expect(box).to_have_value("tree 3x2")
    page.locator("#max-tokens input[type=number]").fill("64")
    page.locator("#probabilities input").check()
    page.locator("#prompt textarea").fill("hello fox")
    page.locator("#prompt textarea").press("Enter")
    steps = steps_of(workbench, answered(page))
    drafted = next(step for step in steps if len(step["draft"]["tokens"]) == 9 and step["tokens"][0]["text"])
    assert len(drafted["draft"]["probs"]) == 9
    check_both_probabilities(page, drafted)
    expect(page.locator(".sp-turn-model")).to_have_text("tiny@heads · tree 3x2")
    page.locator("#options-open").click()
    candidates = page.locator("#tree-picture .tr-node")
    expect(candidates).to_have_count(10)
    candidates.nth(1).click(position={"x": 5, "y": 5})
    expect(box).to_have_value("[[1],[2],[1,0],[1,1],[2,0],[2,1]]")
    candidates.first.locator(".tr-plus").click()
    expect(box).to_have_value("[[0],[1],[2],[1,0],[1,1],[2,0],[2,1]]")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Delete")
    page.keyboard.press("Enter")
    expect(box).to_have_value("[[0],[1],[2],[2,0],[2,1]]")
    box.fill("chain 99")
    page.locator("#prompt textarea").fill("and?")
    page.locator("#prompt textarea").press("Enter")
    expect(page.locator("#problem")).to_contain_text("a tree is at most 32")


def test_typical_acceptance_is_called_lossy_wherever_it_shows(page: Page, workbench: Workbench) -> None:
    page.goto(f"{workbench.url}/playground/compare?models=tiny&models=tiny@heads&prompt=hello")
    page.locator("#options-open").click()
    page.get_by_label("Typical (lossy)").check()
    page.locator("#compare-run").click()
    expect(page.locator("#problem")).to_contain_text("needs a temperature above 0")
    page.locator("#options-open").click()
    page.locator("#max-tokens input[type=number]").fill("24")
    page.locator("#temperature input[type=number]").fill("0.9")
    page.locator("#temperature input[type=number]").press("Tab")
    page.locator("#compare-run").click()
    expect(page.locator('[data-finished="yes"]')).to_have_count(1)
    lossy = page.locator(".sp-column").nth(1)
    expect(lossy.locator("h2")).to_contain_text("typical acceptance (lossy)")
    expect(lossy).to_contain_text("Typical acceptance is lossy: the response may differ from plain decoding.")
    expect(page.locator(".sp-column").first.locator("h2")).to_have_text("tiny")


def test_an_evaluation_leads_to_the_steps_of_its_worst_prompt(page: Page, workbench: Workbench) -> None:
    with reading(workbench.settings) as rows:
        heads = rows.query(Checkpoint).filter_by(name="heads").join(Base).filter(Base.name == "tiny").first()
    worst = {"id": "q1", "turn": 0, "category": "", "tau": 1.0, "tokens": 12, "steps": 11}
    worst["messages"] = [{"role": "user", "content": "hello dog"}]
    row = Evaluation(name="e", state="ready", base_id=heads.base_id, checkpoint_id=heads.id, suite="own")
    row.result, row.config = {"per_prompt": [worst], "max_tokens": 12}, {"drafting": {"tree": [[0, 0], [1]]}}
    page.goto(f"{workbench.url}/results?id={workbench.add(row)}")
    page.get_by_text("Worst prompts", exact=True).click()
    page.get_by_role("button", name="Show its steps: prompt 1").click()
    expect(page).to_have_url(re.compile(r"/playground\?chat=[0-9a-f]{32}$"))
    steps = steps_of(workbench, answered(page))
    drafted = next(step for step in steps if len(step["draft"]["tokens"]) == 3 and step["tokens"][0]["text"])
    check_both_probabilities(page, drafted)
    expect(page.locator(".sp-question").first).to_have_text("hello dog")


def test_the_tree_tab_can_be_read(page: Page, furnished: Furnished, axe: str) -> None:
    open_page(page, furnished.url + furnished.things["a checkpoint"])
    page.get_by_role("tab", name="Tree").click()
    expect(page.locator("#checkpoint-tuned")).to_contain_text("Tuned: 6 nodes")
    assert violations(page, axe) == []
