"""The page of words, and the ways to it."""

from playwright.sync_api import Page, expect

from tests.browser.furnished import Furnished, open_page


def test_a_label_leads_to_its_word(page: Page, furnished: Furnished) -> None:
    open_page(page, f"{furnished.url}/checkpoints")
    page.locator("#checkpoints-table th a", has_text="τ").click()
    page.wait_for_url("**/words#tau")
    expect(page.locator("#tau")).to_have_class("sp-asked")
    expect(page.locator("#tau")).to_be_in_viewport()
    expect(page.locator("#tau + dd")).to_contain_text("Tokens that one verification brings")


def test_another_word_is_marked_when_the_address_names_it(page: Page, furnished: Furnished) -> None:
    open_page(page, f"{furnished.url}/words")
    expect(page.locator(".sp-asked")).to_have_count(0)
    page.locator("#words-picture a", has_text="Own token").click()
    expect(page.locator(".sp-asked")).to_have_id("own-token")
    page.go_back()
    expect(page.locator(".sp-asked")).to_have_count(0)


def test_figures_of_a_conversation_lead_there_too(page: Page, furnished: Furnished) -> None:
    open_page(page, furnished.url + furnished.things["a chat"])
    links = page.locator(".sp-side .sp-term")
    targets = links.evaluate_all("(nodes) => nodes.map((node) => node.getAttribute('href'))")
    assert targets == ["/words#tau", "/words#speedup", "/words#acceptance", "/words#step"]
    open_page(page, furnished.url + furnished.things["a comparison"])
    expect(page.locator(".sp-column .sp-term")).to_have_count(4)
