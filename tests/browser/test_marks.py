"""The origin of tokens and of characters of several tokens; steps on a phone; when a speedup is shown."""

import pytest
from playwright.sync_api import Browser, Page, expect

from app import turns
from decoding.step import EmittedToken, Step
from decoding.text import TextStream
from tests.browser.conftest import watch
from tests.browser.test_playground import answered, assert_nothing_is_covered, start_long_chat, stored
from tests.browser.workbench import Workbench
from tests.tiny import tiny_tokenizer
from tests.tools.running import wait_for
from tracking import runs
from tracking.db import writing

pytestmark = pytest.mark.browser
EMOJI = "🐝🦊🌻"
ORIGINS = (("draft",) * 4, ("target",) * 4, ("draft", "draft", "draft", "target"))


def store_emoji(workbench: Workbench) -> str:
    """A chat whose answer is three emoji of four tokens each, with origins from ORIGINS; returns its id."""
    tokenizer = tiny_tokenizer()
    ids = tokenizer(EMOJI)["input_ids"]
    assert len(ids) == 12
    origins = [origin for group in ORIGINS for origin in group]
    emitted = [EmittedToken(token, origin, 1) for token, origin in zip(ids, origins, strict=True)]
    steps = [Step(i, "verify", tuple(emitted[2 * i : 2 * i + 2])) for i in range(6)]
    records = list(TextStream(tokenizer).records(steps))
    with writing(workbench.settings) as rows:
        request = {"messages": [{"role": "user", "content": "Say it in pictures"}], "chat": {"after": ""}}
        run = runs.create_run(rows, "chat", "tiny@heads", request, turns.new_id())
        runs.start_run(rows, run.id)
        runs.add_steps(rows, run.id, records)
        runs.finish_run(rows, run.id, EMOJI, {"finish": "stop", "notices": []})
        return str(run.group_id)


def test_a_character_of_several_tokens_shows_whose_they_all_were(page: Page, workbench: Workbench) -> None:
    page.goto(f"{workbench.url}/playground?chat={store_emoji(workbench)}")
    tokens = answered(page).locator(".tr-token")
    expect(tokens).to_have_text(list(EMOJI))
    for token, origin in zip(tokens.all(), ("draft", "target", "mixed"), strict=True):
        assert f"sp-{origin}" in token.get_attribute("class").split()
    assert "one character of 4 tokens, 3 of them drafted" in tokens.nth(2).get_attribute("title")


def phone(browser: Browser, page_errors: list[str]) -> Page:
    context = browser.new_context(viewport={"width": 400, "height": 800}, has_touch=True)
    watch(context, page_errors)
    return context.new_page()


@pytest.fixture(scope="module")
def long_chat(workbench: Workbench) -> str:
    """Id of a chat with a long drafted answer that starts after a short plain answer in another chat."""
    plain, refused = turns.next_turn(
        workbench.settings, "", "tiny", "Short and plain", turns.TurnOptions(max_tokens=24)
    )
    assert not refused
    wait_for(lambda: stored(workbench, plain.id)[0]["ended"], "the short answer")
    return start_long_chat(workbench)


def test_on_a_phone_a_tapped_token_shows_its_step_beside_it(
    browser: Browser, workbench: Workbench, long_chat: str
) -> None:
    page_errors: list[str] = []
    page = phone(browser, page_errors)
    page.goto(f"{workbench.url}/playground?chat={long_chat}")
    turn = answered(page)
    _, steps = stored(workbench, turn.get_attribute("data-run"))
    step = next(s for s in steps if len(s["accepted"]) and s["index"] > 5)
    node = turn.locator(f'[data-step="{step["index"]}"]')
    node.scroll_into_view_if_needed()
    node.tap()
    popover = page.get_by_role("dialog", name=f"Step {step['index']}")
    expect(popover.locator(".tr-node")).to_have_count(len(step["draft"]["tokens"]))
    box, tapped = popover.bounding_box(), node.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 400
    assert box["y"] >= tapped["y"] + tapped["height"] - 1 or box["y"] + box["height"] <= tapped["y"] + 1
    assert abs(box["y"] - tapped["y"]) < 500
    popover.get_by_role("button", name="Close").tap()
    expect(popover).to_have_count(0)
    node.tap()  # deselects the step
    node.tap()
    expect(popover).to_be_visible()
    page.locator(".sp-question").tap()
    expect(popover).to_have_count(0)
    page.locator("#chats-open").tap()
    expect(page.locator(f'#chats li[data-chat="{long_chat}"] a')).to_be_in_viewport()
    page.keyboard.press("Escape")
    expect(page.locator("#chats")).to_be_hidden()
    assert_nothing_is_covered(page)
    page.context.close()
    assert not page_errors, page_errors


def test_a_plain_answer_of_another_length_is_no_reference(page: Page, workbench: Workbench, long_chat: str) -> None:
    """After a short plain answer, a long drafted one shows no speedup, but the button that measures it."""
    page.goto(f"{workbench.url}/playground?chat={long_chat}")
    run, _ = stored(workbench, answered(page).get_attribute("data-run"))
    assert "plain_tokens_per_second" not in run["summary"] and "speedup" not in run["summary"]
    expect(page.locator('[data-figure="speedup"]')).to_have_text("–")
    expect(page.locator(".sp-tile-note", has_text="Not measured yet")).to_be_visible()
    expect(page.locator("#run-plain")).to_be_visible()


def stored_pair(workbench: Workbench, load: float, plain_load: float) -> str:
    """Store a drafted answer and its plain run, measured under these loads; returns the chat's id."""
    step = {"index": 1, "kind": "verify", "tokens": [{"id": 1, "text": "a", "origin": "draft", "depth": 1, "rank": 0}]}
    draft = {"tokens": [1], "texts": ["a"], "parents": [-1], "depths": [1], "ranks": [0], "logprobs": [0.0]}
    step |= {"draft": draft, "accepted": [0], "counted": True, "finish": None}
    step |= {"ms": {"draft": 1, "verify": 9, "other": 0}}
    figures = {"finish": "stop", "notices": [], "mean_accepted_length": 2.0, "acceptance_by_depth": [1.0]}
    request = {"messages": [{"role": "user", "content": "pair"}], "chat": {"after": ""}}
    with writing(workbench.settings) as rows:
        run = runs.create_run(rows, "chat", "tiny@heads", request, turns.new_id())
        plain = runs.create_run(rows, "compare", "tiny", request, run.id)
        for measured_run, speed, share in ((run, 60.0, load), (plain, 30.0, plain_load)):
            runs.start_run(rows, measured_run.id)
            runs.add_steps(rows, measured_run.id, [step])
            summary = figures | {"decode_tokens_per_second": speed, "other_load": share}
            runs.finish_run(rows, measured_run.id, "a", summary)
        return str(run.group_id)


@pytest.mark.parametrize(("plain_load", "speedup"), [(0.15, "2.00×"), (0.8, "≈ 2.00×")])
def test_a_speedup_under_another_load_is_marked_as_noisy_and_can_be_measured_again(
    page: Page, workbench: Workbench, plain_load: float, speedup: str
) -> None:
    page.goto(f"{workbench.url}/playground?chat={stored_pair(workbench, 0.1, plain_load)}")
    answered(page)
    expect(page.locator('[data-figure="speedup"]')).to_have_text(speedup)
    retry = page.locator("#run-plain")
    if plain_load != 0.8:
        expect(retry).to_be_hidden()
    else:
        expect(page.locator(".sp-tile-note", has_text="other programs used 10 %")).to_contain_text("and 80 % during")
        expect(retry).to_have_text("Measure the speedup again")
        with page.expect_response("**/plain?again=true") as response_info:
            retry.click()
        assert response_info.value.json()["state"] == "QUEUED", "another measurement, not the noisy one"


def test_speculation_is_not_called_off_while_the_model_loads(page: Page, workbench: Workbench) -> None:
    """The page of a waiting run says what it waits for, not that speculation is off."""
    with writing(workbench.settings) as rows:
        request = {"messages": [{"role": "user", "content": "wait"}], "chat": {"after": ""}}
        run = runs.create_run(rows, "chat", "tiny@heads", request, turns.new_id())
    page.goto(f"{workbench.url}/playground?chat={run.group_id}")
    expect(page.locator(".sp-turn-state")).to_have_text("waiting for the model…")
    expect(page.locator(".sp-tile-note", has_text="loading the model")).to_be_visible()
    expect(page.locator(".sp-side")).not_to_contain_text("speculation is off")
    page.request.post(f"{workbench.url}/api/runs/{run.id}/cancel")
    expect(page.locator('.sp-turn[data-state="CANCELLED"]')).to_be_visible()
