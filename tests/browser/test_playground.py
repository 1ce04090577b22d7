"""The Playground in a real browser against real servers: answers are streamed, shown, replayed and stopped."""

import re

import pytest
from playwright.sync_api import Page, expect

from app import turns
from speculoos.cpu_load import are_loads_comparable
from tests.browser.conftest import VIEWPORT
from tests.browser.furnished import open_page
from tests.browser.services import limit_tokens
from tests.browser.workbench import Workbench, add_heads
from tracking import runs
from tracking.db import reading, writing
from tracking.tables import Base, Checkpoint

pytestmark = pytest.mark.browser
NASTY = "<img src=x onerror=alert(1)> ${alert(1)} {{7*7}} </span><script>alert(2)</script>"
LONG = turns.TurnOptions(max_tokens=900)


def open_playground(page: Page, workbench: Workbench, query: str = "") -> None:
    """Open the page and wait until its pickers are filled, by default with the best draft of the first base."""
    page.goto(f"{workbench.url}/playground{query}")
    expect(page.locator("#base input")).to_have_value(re.compile(".+"))
    expect(page.locator("#draft input")).to_have_value(re.compile(".+"))


def ask(page: Page, prompt: str, key: str = "Control+Enter") -> None:
    page.locator("#prompt textarea").fill(prompt)
    page.locator("#prompt textarea").press(key)


def answered(page: Page, count: int = 1):
    done = page.locator('.sp-turn[data-state="SUCCEEDED"]')
    expect(done).to_have_count(count)
    return done.nth(count - 1)


def stored(workbench: Workbench, run_id: str) -> tuple[dict, list[dict]]:
    with reading(workbench.settings) as rows:
        return runs.run_view(runs.get_run(rows, run_id)), runs.steps_after(rows, run_id, limit=10_000)


def origin_of(token: dict) -> str:
    """The origin of a token, or of all that make a character with it."""
    origins = set(token.get("origins", [token["origin"]]))
    return origins.pop() if len(origins) == 1 else "mixed"


def shown_tokens(turn) -> list[list[str]]:
    """[text, origin] of every token on the page, in order."""
    return turn.locator(".tr-token").evaluate_all(
        """nodes => nodes.map(n =>
            [n.textContent, ['draft', 'target', 'plain', 'mixed'].find(o => n.classList.contains('sp-' + o))])"""
    )


def shown_text(turn) -> str:
    return turn.locator(".tr-tokens").evaluate("node => node.textContent")


def start_long_chat(workbench: Workbench, model: str = "tiny@heads") -> str:
    """A chat whose only answer is being generated; returns its id."""
    run, refused = turns.next_turn(workbench.settings, "", model, "Tell me a long story.", LONG)
    assert not refused
    return str(run.group_id)


def test_tokens_figures_and_steps_are_shown_as_they_were_recorded(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    ask(page, "hello there")
    turn = answered(page)
    run, steps = stored(workbench, turn.get_attribute("data-run"))
    check_tokens(page, turn, run, steps)
    summary = run["summary"]
    expect(page.locator('[data-figure="tau"]')).to_have_text(f"{summary['mean_accepted_length']:.2f}")
    speed = page.evaluate("value => value.toFixed(1)", summary["decode_tokens_per_second"])  # 21.25: Python says 21.2
    expect(page.locator('[data-figure="speed"]')).to_have_text(speed)
    expect(page.locator(".sp-bars li")).to_have_count(len(summary["acceptance_by_depth"]))
    check_trees(page, turn, steps)


def check_tokens(page: Page, turn, run: dict, steps: list[dict]) -> None:
    """Every token has the origin that the verifier recorded, and looks like it."""
    expected = [[t["text"], origin_of(t)] for step in steps for t in step["tokens"] if t["text"]]
    assert shown_tokens(turn) == expected
    assert {"draft", "target"} <= {origin for _, origin in expected}
    assert shown_text(turn) == run["text"]
    assert turn.locator(".tr-step").count() == sum(any(t["text"] for t in s["tokens"]) for s in steps)
    backgrounds = "nodes => nodes.map(node => getComputedStyle(node).backgroundColor)"
    assert set(turn.locator(".tr-token.sp-target").evaluate_all(backgrounds)) == {"rgba(0, 0, 0, 0)"}
    assert "rgba(0, 0, 0, 0)" not in turn.locator(".tr-token.sp-draft").evaluate_all(backgrounds)
    page.emulate_media(forced_colors="active")
    lines = "node => getComputedStyle(node).textDecorationLine"
    assert turn.locator(".tr-token.sp-draft").first.evaluate(lines) == "underline"
    page.emulate_media(forced_colors="none")


def check_trees(page: Page, turn, steps: list[dict]) -> None:
    """The newest step's drafted tree is shown beside the answer, then that of a clicked step, and no popover opens."""
    detail = page.locator(".sp-detail")
    newest = [s["index"] for s in steps if s["draft"]["tokens"]][-1]
    expect(detail.locator("h2")).to_contain_text(f"Step {newest}:")
    step = next(s for s in steps if s["accepted"])
    turn.locator(f'[data-step="{step["index"]}"]').first.click()
    nodes = detail.get_by_role("tree", name="Drafted tree").get_by_role("treeitem")
    expect(nodes).to_have_count(len(step["draft"]["tokens"]))
    expect(detail.locator(".tr-node.sp-accepted")).to_have_count(len(step["accepted"]))
    expect(page.locator(".sp-popover")).to_have_count(0)
    assert_nothing_is_covered(page)
    first = detail.locator('.tr-node[data-node="0"]')
    first.focus()
    page.keyboard.press("ArrowDown")
    label = page.evaluate("document.activeElement.ariaLabel")
    assert re.fullmatch(r"“.+”, depth \d, (accepted|rejected), q [\d.]+ %", label), label
    expect(detail.locator(".tr-told")).to_have_text(label)
    page.locator(".tr-tokens").press("ArrowRight")
    later = [s["index"] for s in steps if s["index"] > step["index"]][0]
    expect(detail.locator("h2")).to_contain_text(f"Step {later}:")


def assert_nothing_is_covered(page: Page) -> None:
    """The page is as high as the window, and the composer begins where the conversation ends."""
    assert page.evaluate("document.scrollingElement.scrollHeight <= innerHeight")
    above = page.locator(".sp-stage, .sp-conversation").evaluate_all(
        "nodes => nodes.map(n => n.getBoundingClientRect().bottom).find((bottom) => bottom > 0 && bottom < innerHeight)"
    )
    assert 0 < above <= page.locator(".sp-composer").bounding_box()["y"]


def test_a_plain_run_of_the_same_prompt_gives_the_speedup(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    limit_tokens(page, 64)
    ask(page, "measure me")
    turn = answered(page)
    run, _ = stored(workbench, turn.get_attribute("data-run"))
    page.locator("#run-plain").click()
    note = page.locator(".sp-tile-note", has_text=re.compile("baseline, same prompt|Noisy"))
    expect(note).to_be_visible(timeout=60_000)
    with reading(workbench.settings) as rows:
        plain = runs.group_runs(rows, run["id"])[0]
    assert plain.model == "tiny"
    ratio = run["summary"]["decode_tokens_per_second"] / plain.summary["decode_tokens_per_second"]
    comparable = are_loads_comparable(run["summary"]["other_load"], plain.summary["other_load"])
    expect(page.locator('[data-figure="speedup"]')).to_have_text(f"{ratio:.2f}×" if comparable else f"≈ {ratio:.2f}×")
    page.reload()
    expect(note).to_be_visible()


def test_a_long_answer_goes_on_after_a_reload_and_in_a_second_tab_and_is_replayed_at_once(
    page: Page, workbench: Workbench
) -> None:
    for _ in range(4):  # on a busy machine an answer may have ended before the page is drawn
        page.goto(f"{workbench.url}/playground?chat={start_long_chat(workbench)}")
        page.wait_for_function("document.querySelectorAll('.sp-turn .tr-token').length > 20")
        seen = page.locator(".sp-turn .tr-token").count()
        if page.locator(".sp-turn").get_attribute("data-state") == "RUNNING":
            break
    else:
        pytest.fail("every answer had ended before its page was drawn")
    page.reload()
    page.wait_for_function(f"document.querySelectorAll('.sp-turn .tr-token').length >= {seen}")
    other = page.context.new_page()
    other.goto(page.url)
    turn = answered(page)
    run, steps = stored(workbench, turn.get_attribute("data-run"))
    assert shown_text(turn) == shown_text(answered(other)) == run["text"]
    assert turn.locator(".tr-step").count() == sum(any(t["text"] for t in s["tokens"]) for s in steps)
    count = turn.locator(".tr-token").count()
    assert count > 500
    page.reload()
    page.wait_for_function(f"document.querySelectorAll('.sp-turn .tr-token').length === {count}")


BY_KEY, BY_BUTTON = (
    "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))",
    "document.querySelector('#stop').click()",
)


@pytest.mark.parametrize("stopping", [BY_KEY, BY_BUTTON])
def test_stopping_keeps_what_was_written(page: Page, workbench: Workbench, stopping: str) -> None:
    turn = page.locator('.sp-turn[data-state="CANCELLED"]')
    for _ in range(4):  # on a busy machine an answer may have ended before the page is drawn
        page.goto(f"{workbench.url}/playground?chat={start_long_chat(workbench)}")
        page.wait_for_function(
            "document.querySelector('.sp-turn .tr-token')"
            " && (!document.querySelector('#stop').disabled"
            " || document.querySelector('.sp-turn').dataset.state === 'SUCCEEDED')"
        )
        page.evaluate(stopping)
        page.wait_for_function("document.querySelector('.sp-turn').dataset.state.match(/CANCELLED|SUCCEEDED/)")
        if turn.count():
            break
    expect(turn).to_be_visible()
    expect(page.locator("#stop")).to_be_disabled()
    run, _ = stored(workbench, turn.get_attribute("data-run"))
    assert run["text"]
    assert shown_text(turn) == run["text"]


def test_markup_in_a_prompt_and_a_checkpoint_name_is_shown_literally(page: Page, workbench: Workbench) -> None:
    name = "<img src=x onerror=alert(1)>${alert(1)}"
    with reading(workbench.settings) as rows:
        base_id = rows.query(Base).filter_by(name="tiny").one().id
    row_id = add_heads(workbench, base_id, name, note=name)
    address = "/playground?model=tiny@" + name.replace("$", "%24").replace("<", "%3C").replace(" ", "%20")
    for path in ("/playground/compare", "/models/drafts", f"/models/drafts?id={row_id}", address):
        open_page(page, workbench.url + path)
        expect(page.locator("#strip .sp-strip")).to_be_visible()
        assert page.locator("main img[src='x'], .sp-page img[src='x']").count() == 0, path
        if path.endswith(row_id):
            expect(page.locator("#checkpoint-head h1")).to_have_text(name)
    expect(page.locator("#draft input")).to_have_value(re.compile(re.escape(name)))
    limit_tokens(page)
    ask(page, NASTY)
    expect(answered(page).locator(".sp-turn-model")).to_have_text(f"tiny@{name}")
    expect(page.locator(".sp-question")).to_have_text(NASTY)
    assert page.locator(".sp-stage img, .sp-stage script").count() == 0
    page.reload()
    expect(page.locator(".sp-question")).to_have_text(NASTY)
    with writing(workbench.settings) as rows:
        rows.delete(rows.get_one(Checkpoint, row_id))


def test_a_chat_remembers_its_turns_and_a_new_one_forgets_them(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    limit_tokens(page)
    ask(page, "first", "Enter")
    answered(page)
    ask(page, "second")
    turn = answered(page, 2)
    run, _ = stored(workbench, turn.get_attribute("data-run"))
    assert [m["content"] for m in run["request"]["messages"]][::2] == ["first", "second"]
    page.locator("#new-chat").click()
    expect(page.locator(".sp-turn")).to_have_count(0)
    assert "chat=" not in page.url
    ask(page, "third")
    run, _ = stored(workbench, answered(page).get_attribute("data-run"))
    assert len(run["request"]["messages"]) == 1


def test_the_page_says_why_speculation_is_off(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench, "?model=tiny")
    expect(page.locator("#why-off")).to_contain_text("Speculation is off: no draft is selected")
    for width in (VIEWPORT["width"], 400):
        page.set_viewport_size({**VIEWPORT, "width": width})
        tops = [page.locator(part).bounding_box()["y"] for part in (".sp-toolbar", ".sp-tabs", "#why-off", "#prompt")]
        assert tops == sorted(tops), width
    page.set_viewport_size(VIEWPORT)
    page.get_by_role("button", name="What is photosynthesis?").click()  # an example is sent at once
    turn = answered(page)
    assert {origin for _, origin in shown_tokens(turn)} == {"plain"}
    expect(page.locator(".sp-tile-note", has_text="speculation is off")).to_be_visible()


def test_a_question_can_be_asked_again_taken_back_and_removed(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    limit_tokens(page)
    ask(page, "one")
    first = answered(page).get_attribute("data-run")
    page.get_by_role("button", name="Again").click()
    expect(page.locator(f'.sp-turn[data-run="{first}"]')).to_have_count(0)
    expect(answered(page).locator(".sp-question")).to_have_text("one")
    page.get_by_role("button", name="Edit").click()
    expect(page.locator("#prompt textarea")).to_have_value("one")
    ask(page, "two")
    expect(page.locator(".sp-question")).to_have_text("two")
    expect(page.locator(".sp-versions")).to_contain_text("3 / 3")
    answered(page)
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".sp-versions")).to_contain_text("2 / 2")
    for _ in range(2):
        shown = page.locator(".sp-turn").get_attribute("data-run")
        page.get_by_role("button", name="Remove").click()
        expect(page.locator(f'.sp-turn[data-run="{shown}"]')).to_have_count(0)
    expect(page.locator(".sp-turn")).to_have_count(0)
    assert "chat=" not in page.url
