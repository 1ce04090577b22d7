"""Servers as targets of Playground and Compare, in a real browser: a test server replays recorded streams."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.test_compare import wait_finished
from tests.browser.test_playground import ask, shown_text
from tests.browser.workbench import Workbench
from tests.tools.served_replay import Replay, replaying

pytestmark = pytest.mark.browser


@pytest.fixture
def replay(workbench: Workbench):
    """The endpoint `served`, added to the settings while the workbench runs."""
    path = workbench.settings.home / "settings.toml"
    with replaying() as replay_server:
        path.write_text(f'[endpoints.served]\nurl = "{replay_server.url}"\n')
        yield replay_server
        path.unlink()


def chat_with_server(page: Page, workbench: Workbench) -> None:
    page.goto(f"{workbench.url}/playground?model=@served")
    expect(page.locator("#base input")).to_have_value("served · server")
    ask(page, "Name three colours.")


def test_vllms_accepted_tokens_are_colored(page: Page, workbench: Workbench, replay: Replay) -> None:
    chat_with_server(page, workbench)
    expect(page.locator("#draft input")).to_be_disabled()
    expect(page.locator("#why-off")).to_contain_text("The server chooses its own draft")
    turn = page.locator('.sp-turn[data-state="SUCCEEDED"]')
    expect(turn.locator(".tr-token.sp-draft")).to_have_count(16)
    expect(turn.locator(".tr-token.sp-unknown")).to_have_count(0)
    assert shown_text(turn).startswith("1. Red: This is the most obvious colour")
    expect(page.locator('[data-figure="tau"]')).to_have_text("1.71")
    expect(page.locator(".sp-side")).to_contain_text("17 of 72 drafted tokens accepted, as counted by vLLM")
    expect(turn.get_by_text("Continue", exact=True)).to_be_hidden()
    turn.locator(".tr-step").nth(1).click()
    expect(page.locator(".sp-side-step")).to_contain_text("Accepted 1 of 3 drafted tokens")
    page.reload()
    expect(turn.locator(".tr-token.sp-draft")).to_have_count(16)
    expect(page.locator("#base input")).to_have_value("served · server")


def test_llamacpps_totals_are_shown_and_no_token_is_colored(page: Page, workbench: Workbench, replay: Replay) -> None:
    replay.recording = "llamacpp"
    chat_with_server(page, workbench)
    turn = page.locator('.sp-turn[data-state="SUCCEEDED"]')
    expect(turn).to_contain_text("llama.cpp publishes totals, not which tokens were drafted")
    expect(turn.locator(".tr-token.sp-draft")).to_have_count(0)
    expect(page.locator('[data-figure="tau"]')).to_have_text("1.63")
    expect(page.locator(".sp-side")).to_contain_text("15 of 69 drafted tokens accepted, as counted by llama.cpp")


def test_a_servers_response_is_stopped_and_its_failure_is_shown(
    page: Page, workbench: Workbench, replay: Replay
) -> None:
    replay.waits_after = 8
    chat_with_server(page, workbench)
    turn = page.locator(".sp-turn")
    expect(turn.locator(".tr-tokens")).to_contain_text("1. Red")
    page.locator("#stop").click()
    expect(page.locator('.sp-turn[data-state="CANCELLED"]')).to_be_visible()
    assert replay.left.wait(30)
    replay.waits_after, replay.breaks_after = 10**9, 6
    ask(page, "Again.")
    failed = page.locator('.sp-turn[data-state="FAILED"]')
    expect(failed).to_contain_text("Server served ended its response before it was complete")
    assert shown_text(failed).startswith("1. Red")


def test_a_server_is_compared_with_ours_and_itself(page: Page, workbench: Workbench, replay: Replay) -> None:
    page.goto(f"{workbench.url}/playground/compare?models=@served&models=tiny@heads&prompt=hello")
    expect(page.locator("#compare-prompt textarea")).to_have_value("hello")
    page.locator("#compare-run").click()
    wait_finished(page)
    columns = page.locator(".sp-column")
    expect(columns.locator("h2")).to_have_text(["served · server", "tiny@heads"])
    expect(columns.nth(1).locator(".sp-match")).to_contain_text("differs from the first column at token 1")
    expect(columns.nth(0).locator(".tr-token.sp-draft")).to_have_count(16)
    expect(columns.nth(0).locator('[data-figure="speedup"]')).to_have_text("–")
