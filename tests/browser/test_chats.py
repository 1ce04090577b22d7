"""Conversations in a real browser: history over a restart, search and deletion, versions, continuing, copying."""

import re

import pytest
from playwright.sync_api import Page, expect

from app import turns
from tests.browser.services import choose, limit_tokens
from tests.browser.test_every_page import COLOR_RULES, switch_theme, violations
from tests.browser.test_playground import NASTY, answered, ask, open_playground, shown_text, stored
from tests.browser.workbench import Workbench
from tracking import chats, runs
from tracking.db import reading, writing

pytestmark = pytest.mark.browser
CODE = """# <i>
def count(n=7):
    return print("<b>", n)
"""
ANSWER = f"""# Bees

They **dance** and {NASTY}

1. fly
2. look

| who | how |
|-----|-----|
| bee | sun |

```python
{CODE}```

[site](https://bees.example) [bad](javascript:alert(1)) ![pic](https://elsewhere.example/x.png)
"""


def plain_step(index: int, text: str, finish: str | None = None) -> dict:
    token = {"id": 65, "text": text, "origin": "plain", "depth": 0, "rank": 0}
    draft = {"tokens": [], "texts": [], "parents": [], "depths": [], "ranks": [], "logprobs": []}
    ms = {"draft": 0, "verify": 1, "other": 0}
    step = {"index": index, "kind": "plain", "tokens": [token], "draft": draft, "accepted": [], "counted": True}
    return {**step, "finish": finish, "ms": ms}


def store_chat(workbench: Workbench, question: str, answer: str, **position: str) -> str:
    """A chat of one turn that was answered earlier; returns its id."""
    with writing(workbench.settings) as rows:
        request = {"messages": [{"role": "user", "content": question}], "chat": {"after": "", **position}}
        run = runs.create_run(rows, "chat", "tiny", request, turns.new_id())
        runs.start_run(rows, run.id)
        runs.add_steps(rows, run.id, [plain_step(0, answer)])
        runs.finish_run(rows, run.id, answer, {"finish": "stop", "notices": [], "tokens": 1})
        return str(run.group_id)


def wait_for_answer_text(page: Page, text: str) -> None:
    """Wait until the first answer on the page is `text`."""
    page.wait_for_function("text => document.querySelector('.sp-turn .tr-tokens').textContent === text", arg=text)


def row(page: Page, title: str):
    return page.locator("#chats li", has=page.get_by_role("link", name=title, exact=True))


def open_list(page: Page, find: str = "") -> None:
    page.locator("#chats-find").fill(find)


def test_chats_are_listed_and_go_on_when_the_inference_server_is_back(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    limit_tokens(page)
    ask(page, "Where do bees sleep?", "Enter")
    before = shown_text(answered(page))
    ask(page, "And wasps?")
    answered(page, 2)
    chat = re.search(r"chat=([0-9a-f]{32})", page.url).group(1)
    workbench.stop("inference")
    open_playground(page, workbench)
    expect(page.locator(".sp-turn")).to_have_count(0)
    open_list(page)
    row(page, "Where do bees sleep?").get_by_role("link").click()
    expect(page).to_have_url(re.compile(chat))
    answered(page, 2)
    wait_for_answer_text(page, before)
    ask(page, "And ants?")
    failed = page.locator('.sp-turn[data-state="FAILED"]')
    expect(failed.locator("[role=alert]")).to_contain_text("The inference server does not respond")
    expect(page.locator("#prompt textarea")).to_have_value("And ants?")
    workbench.start("inference")
    page.locator("#send").click()
    run, _ = stored(workbench, answered(page, 3).get_attribute("data-run"))
    questions = [message["content"] for message in run["request"]["messages"]]
    assert questions[::2] == ["Where do bees sleep?", "And wasps?", "And ants?"]


def test_chats_are_searched_and_deleted_after_a_second_click(page: Page, workbench: Workbench) -> None:
    wanted = store_chat(workbench, f"Heron {NASTY}", "They fish.")
    store_chat(workbench, "Kingfisher", "A blue one.")
    open_playground(page, workbench)
    open_list(page, "heron fish")
    link = page.locator(f'#chats li[data-chat="{wanted}"] a')
    expect(link).to_contain_text("<img src=x")
    expect(page.locator("#chats li")).to_have_count(1)
    link.click()
    expect(page.locator("#chats [aria-current]")).to_contain_text("<img src=x")
    open_list(page, "heron fish")
    expect(page.locator("#chats li")).to_have_count(1)
    page.get_by_role("button", name="Rename").click()
    page.keyboard.press("Escape")
    expect(page.locator("#chats [aria-current]")).to_contain_text("<img src=x")
    expect(page.get_by_role("button", name="Rename")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.type("The heron & fish")
    page.keyboard.press("Enter")
    expect(page.locator("#chats [aria-current]")).to_have_text("The heron & fish")
    page.get_by_role("button", name="Delete").click()
    with reading(workbench.settings) as rows:
        assert runs.group_runs(rows, wanted)
    page.get_by_role("button", name="Delete permanently?").click()
    expect(page.locator("#chats li[data-chat]")).to_have_count(0)
    expect(page.locator(".sp-turn")).to_have_count(0)
    assert "chat=" not in page.url
    with reading(workbench.settings) as rows:
        assert not runs.group_runs(rows, wanted)
    open_list(page, "no bird is called that")
    expect(page.locator("#chats")).to_contain_text("Nothing found.")


def test_an_edited_question_is_another_version_and_there_is_a_way_back(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    limit_tokens(page)
    ask(page, "first question", "Enter")
    answered(page)
    ask(page, "second question")
    answered(page, 2)
    page.locator("#prompt textarea").fill("half written")
    page.get_by_role("button", name="Edit").first.click()
    expect(page.locator("#prompt textarea")).to_have_value("first question")
    expect(page.locator("#editing")).to_contain_text("Editing an earlier prompt")
    page.locator("#editing").get_by_role("button", name="Cancel").click()
    expect(page.locator("#prompt textarea")).to_have_value("half written")
    page.get_by_role("button", name="Edit").first.click()
    ask(page, "first question, differently")
    expect(page.locator(".sp-turn")).to_have_count(1)
    expect(answered(page).locator(".sp-question-text")).to_have_text("first question, differently")
    expect(page.locator(".sp-versions")).to_contain_text("2 / 2")
    expect(page.locator("#prompt textarea")).to_have_value("half written")
    page.get_by_role("button", name="Previous version").click()
    expect(page.locator(".sp-question-text")).to_have_text(["first question", "second question"])
    page.reload()
    expect(page.locator(".sp-question-text")).to_have_text(["first question", "second question"])
    ask(page, "third question")
    run, _ = stored(workbench, answered(page, 3).get_attribute("data-run"))
    questions = [message["content"] for message in run["request"]["messages"]]
    assert questions[::2] == ["first question", "second question", "third question"]


def test_an_answer_that_was_cut_goes_on(page: Page, workbench: Workbench) -> None:
    run, refused = turns.next_turn(workbench.settings, "", "tiny@heads", "Tell me", turns.TurnOptions(max_tokens=8))
    assert not refused
    page.goto(f"{workbench.url}/playground?chat={run.group_id}")
    turn = answered(page).and_(page.locator(f'[data-run="{run.id}"]'))
    expect(turn).to_contain_text("Truncated at the token limit")
    turn.get_by_role("button", name="Continue").click()
    second = answered(page, 2)
    expect(second.locator(".sp-continues")).to_be_visible()
    expect(turn.get_by_role("button", name="Continue")).to_be_hidden()
    expect(second.get_by_role("button", name="Continue")).to_be_visible()
    with reading(workbench.settings) as rows:
        path = chats.turns_on_path(runs.group_runs(rows, str(run.group_id)))
        ids = [runs.token_ids(rows, turn_run.id) for turn_run in path]
        whole = chats.whole_response(path[-1], path)
    assert [len(turn_ids) for turn_ids in ids] == [8, 8]
    again, _ = turns.next_turn(workbench.settings, "", "tiny@heads", "Tell me", turns.TurnOptions(max_tokens=16))
    page.goto(f"{workbench.url}/playground?chat={again.group_id}")
    answered(page)
    with reading(workbench.settings) as rows:
        assert runs.token_ids(rows, again.id) == [*ids[0], *ids[1]]
        assert runs.get_run(rows, again.id).text == whole


def test_an_answer_and_its_code_are_copied_as_they_were_written(page: Page, workbench: Workbench) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat = store_chat(workbench, "bees", ANSWER)
    page.goto(f"{workbench.url}/playground?chat={chat}")
    answered(page).locator("footer").get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == ANSWER
    page.locator("button[data-view=text]").click()
    page.get_by_role("button", name="Copy").first.click()
    expect(page.locator(".sp-md-code").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == CODE


def test_the_draft_that_was_picked_is_there_after_a_reload(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    assert "model=" not in page.url
    choose(page, "draft", "Prompt lookup")
    expect(page).to_have_url(re.compile(r"model=tiny(@|%40)(:|%3A)ngram"))
    page.reload()
    expect(page.locator("#draft input")).to_have_value(re.compile("Prompt lookup"))
    ask(page, "copy this, copy this, copy this")
    expect(answered(page).locator(".sp-turn-model")).to_have_text("tiny · prompt lookup")


def test_a_long_question_scrolls_and_its_answer_is_in_sight(page: Page, workbench: Workbench) -> None:
    long = "\n".join(f"line {n} of a long text" for n in range(60))
    chat = store_chat(workbench, long, "short answer")
    page.goto(f"{workbench.url}/playground?chat={chat}")
    question = page.locator(".sp-question")
    assert question.bounding_box()["height"] < 220
    expect(page.locator(".tr-tokens")).to_be_in_viewport()
    expect(page.locator(".sp-question-text")).to_have_text(long)


def test_why_a_question_was_not_sent_stands_beside_the_prompt(page: Page, workbench: Workbench) -> None:
    open_playground(page, workbench)
    page.locator("#send").click()
    problem = page.locator(".sp-composer #problem [role=alert]")
    expect(problem).to_contain_text("Enter a prompt first")
    expect(problem).to_be_in_viewport()
    page.locator("#options-open").click()
    page.locator("#seed :is(input, textarea)").fill("seven")
    ask(page, "with a seed")
    expect(problem).to_contain_text("Seed: expected a whole number")
    expect(page.locator("#prompt textarea")).to_have_value("with a seed")


def test_the_text_view_is_markdown_that_does_nothing_and_is_kept(page: Page, workbench: Workbench, axe: str) -> None:
    chat = store_chat(workbench, "bees", ANSWER)
    page.goto(f"{workbench.url}/playground?chat={chat}")
    expect(page.locator(".tr-tokens")).to_be_visible()
    page.locator("button[data-view=text]").click()
    text = page.locator(".sp-reading")
    expect(text.locator("strong")).to_have_text("dance")
    expect(text.locator("ol li")).to_have_text(["fly", "look"])
    expect(text.locator("td")).to_have_text(["bee", "sun"])
    expect(text.locator("pre")).to_have_text(CODE)
    expect(text).to_contain_text("<img src=x onerror=alert(1)>")
    assert text.locator("img, script").count() == 0
    addresses = text.locator("a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert addresses == ["https://bees.example", "https://elsewhere.example/x.png"]
    expect(page.locator(".tr-tokens")).to_be_hidden()
    page.reload()
    expect(text.locator("strong")).to_have_text("dance")
    assert violations(page, axe) == []
    switch_theme(page, "dark")
    assert violations(page, axe, COLOR_RULES) == []
