"""The pages with the keyboard alone, on a phone and with reduced motion."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.furnished import Furnished, open_page
from tests.browser.test_every_page import violations

pytestmark = pytest.mark.browser
FOCUSED = "document.activeElement"
RING = """() => {
  const node = document.activeElement;
  const around = [node, node.parentElement, node.closest('label'), node.closest('.sp-composer')];
  const outlined = (style) => style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 1;
  const drawn = (style) => outlined(style) || style.boxShadow !== 'none';
  return node === document.body || around.some((each) => each && drawn(getComputedStyle(each)));
}"""


def test_the_first_tab_leads_past_the_bar_and_arrow_keys_through_radio_buttons(
    page: Page, furnished: Furnished
) -> None:
    open_page(page, f"{furnished.url}/runs")
    page.keyboard.press("Tab")
    skip = page.locator(".sp-skip")
    expect(skip).to_be_focused()
    assert skip.bounding_box()["y"] >= 0
    page.keyboard.press("Enter")
    expect(page.locator(".sp-page")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate(f"{FOCUSED}.closest('.sp-page') !== null")
    assert page.url.endswith("/runs")

    radios = page.locator("#jobs-filter input[type=radio]")
    radios.first.focus()
    page.keyboard.press("ArrowRight")
    expect(radios.nth(1)).to_be_focused()
    expect(radios.nth(1)).to_be_checked()
    expect(page.locator("#jobs-table a[data-pick]")).to_have_count(4)
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#jobs-table a[data-pick]")).to_have_count(11)


def test_a_dropdown_that_was_closed_opens_with_the_arrow_key_only(page: Page, furnished: Furnished) -> None:
    open_page(page, f"{furnished.url}/playground")
    base = page.locator("#base input")
    base.click()
    expect(base).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Escape")
    expect(base).to_have_attribute("aria-expanded", "false")
    for keys in (("Shift", "Control", "ArrowLeft"), ("Tab",)):
        for key in keys:
            page.keyboard.press(key)
            page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
            assert base.get_attribute("aria-expanded") == "false", key
        page.wait_for_timeout(400)
        assert base.get_attribute("aria-expanded") == "false", keys
    base.focus()
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("option").first).to_be_visible()


@pytest.mark.parametrize("path", ["/runs/new", "/runs", "/settings", "/playground"])
def test_the_focus_is_seen_wherever_tab_leads(page: Page, furnished: Furnished, path: str) -> None:
    open_page(page, furnished.url + path)
    for count in range(40):
        page.keyboard.press("Tab")
        if not page.evaluate(RING):
            where = page.evaluate(f"{FOCUSED}.outerHTML.slice(0, 200)")
            pytest.fail(f"stop {count + 1}: {where}")


@pytest.mark.parametrize("path", ["/", "/runs", "/playground"])
def test_nothing_moves_with_reduced_motion(page: Page, furnished: Furnished, path: str) -> None:
    page.emulate_media(reduced_motion="reduce")
    open_page(page, furnished.url + path)
    moving = "document.getAnimations().filter((a) => a.effect.getComputedTiming().activeDuration > 20).length"
    assert page.evaluate(moving) == 0


def test_the_palette_finds_a_draft_and_the_glossary_explains(page: Page, furnished: Furnished, axe: str) -> None:
    open_page(page, f"{furnished.url}/settings")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Search pages, models, data and runs")
    expect(field).to_be_focused()
    options = page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(options.first).to_have_text("HomePage")
    assert violations(page, axe) == []
    field.fill("train a draft")
    expect(options).to_have_count(1)
    field.fill("heads")
    expect(page.get_by_role("option", name="heads Draft")).to_be_visible()
    while page.locator('.sp-palette [aria-selected="true"]').inner_text().split("\n")[0] != "heads":
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/models/drafts?id=*")
    page.get_by_role("button", name="Glossary").click()
    expect(page.get_by_role("dialog", name="Glossary")).to_contain_text("Mean accepted length")
    assert violations(page, axe) == []
    page.keyboard.press("Escape")
    page.locator("#page-checkpoints .sp-tile .sp-term").first.click()
    expect(page.locator(".sp-picked-word dt")).to_have_text("Mean accepted length (τ)")
