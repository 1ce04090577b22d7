"""The web process is killed during a live answer: every reader reconnects and misses no token."""

import asyncio
import contextlib
import os
import random
import threading
import time

import httpx
import pytest
from playwright.sync_api import Browser, Page, TimeoutError, expect

from app import inference, turns
from tests.browser.test_playground import answered, ask
from tests.browser.workbench import Workbench
from tests.tools.figures import Figures, spread
from tests.tools.loops import run_async
from tests.tools.page_client import StreamResult, follow
from tests.tools.page_load import LoadTarget, Streams, idle
from tracking import runs
from tracking.db import reading

pytestmark = pytest.mark.browser
KILLS = int(os.environ.get("DRILLS_KILLS", "20"))
READERS = 8
LONG = turns.TurnOptions(max_tokens=4000)
"""So long that a slow machine need not finish it: the test stops it. A fast one may."""
FAST_TOKENS = 20


@pytest.mark.timeout(300)
def test_the_web_process_killed_in_a_stream(workbench: Workbench, browser: Browser) -> None:
    check([killed_in_a_stream(workbench, browser, 0.0)])


@pytest.mark.drill
@pytest.mark.timeout(2400)
def test_the_web_process_killed_again_and_again_in_streams(
    workbench: Workbench, browser: Browser, figures: Figures
) -> None:
    rng = random.Random(17)
    results = [killed_in_a_stream(workbench, browser, rng.uniform(0, 1)) for _ in range(KILLS)]
    readers = [reader for result in results for reader in result["readers"]]
    figures.record(
        kills=KILLS,
        streams=len(readers) + KILLS,
        tokens=sum(len(reader.token_ids) for reader in readers),
        lost=sum(result["lost"] for result in results),
        doubled=0 if all(result["shown"] == result["text"] for result in results) else 1,
        recovery={"streams": spread(gap for reader in readers for gap in reader.gaps)},
    )
    check(results)


def test_pages_poll_and_streams_are_whole_while_others_read_too(workbench: Workbench) -> None:
    """The short form of the load drill."""
    target, streams = LoadTarget(workbench.url, workbench.settings), Streams()

    async def together() -> dict:
        async with target.client() as client:
            until = time.monotonic() + 2
            reads = [streams.read(target, client, n, until) for n in range(4)]
            polled, *_ = await asyncio.gather(idle(target, 6, 2.0), *reads)
        return polled

    polled = run_async(together())
    assert (streams.dropped, target.failed) == (0, [])
    assert streams.runs >= 4 and streams.tokens > 100
    assert polled["polls_per_second"] > 0


def killed_in_a_stream(workbench: Workbench, browser: Browser, pause: float) -> dict:
    """Kill and restart the web process while a browser and other clients read one answer."""
    for _ in range(4):  # on a busy machine an answer may have ended before the kill
        run, refused = turns.next_turn(workbench.settings, "", "tiny@heads", "Tell me a long story.", LONG)
        assert not refused
        page = browser.new_page()
        page.goto(f"{workbench.url}/playground?chat={run.group_id}")
        wait_for_tokens(page, FAST_TOKENS)
        readers, thread = start_readers(workbench, run.id)
        time.sleep(pause)
        workbench.kill("web")
        with reading(workbench.settings) as rows:
            was_running = runs.get_run(rows, run.id).state == "RUNNING"
        shown = page.locator(".sp-turn .tr-token").count()
        workbench.start("web")
        if was_running:
            break
        thread.join(120)
        page.close()
    else:
        pytest.fail("every answer had ended before the kill")
    wait_for_tokens(page, shown)
    inference.cancel(workbench.settings, run.id)
    ended = page.locator('.sp-turn[data-state="CANCELLED"], .sp-turn[data-state="SUCCEEDED"]')
    expect(ended).to_have_count(1, timeout=120_000)
    thread.join(120)
    with reading(workbench.settings) as rows:
        stored = runs.get_run(rows, run.id)
        stored_ids = runs.token_ids(rows, run.id)
    assert ended.get_attribute("data-state") == stored.state
    shown = final_text(page, stored.text)
    page.locator("#new-chat").click()
    ask(page, "Still there?")
    answered(page)
    page.close()
    lost = sum(reader.token_ids != stored_ids for reader in readers) + (len(readers) != READERS)
    return {"readers": readers, "lost": lost, "shown": shown, "text": stored.text, "state": stored.state}


def wait_for_tokens(page: Page, count: int) -> None:
    """Wait until the page shows more tokens than `count`."""
    script = "count => document.querySelectorAll('.sp-turn .tr-token').length > count"
    page.wait_for_function(script, arg=count, timeout=120_000)


def final_text(page: Page, text: str) -> str:
    """The answer on the page, which has time to become `text`: a page that lost its server reloads itself."""
    with contextlib.suppress(TimeoutError):
        page.wait_for_function(
            "text => document.querySelector('.sp-turn .tr-tokens')?.textContent === text", arg=text, timeout=60_000
        )
    return page.locator(".sp-turn .tr-tokens").evaluate("node => node.textContent")


def start_readers(workbench: Workbench, run_id: str) -> tuple[list[StreamResult], threading.Thread]:
    """Start clients that read the run's events, in a thread; returns once each has received its first event."""
    results: list[StreamResult] = []
    begun = threading.Semaphore(0)

    async def read() -> None:
        async with httpx.AsyncClient(base_url=workbench.url, timeout=60, trust_env=False) as client:
            results.extend(await asyncio.gather(*(follow(client, run_id, begun=begun.release) for _ in range(READERS))))

    thread = threading.Thread(target=lambda: asyncio.run(read()), daemon=True)
    thread.start()
    for _ in range(READERS):
        assert begun.acquire(timeout=120)
    return results, thread


def check(results: list[dict]) -> None:
    for result in results:
        assert result["lost"] == 0
        assert result["shown"] == result["text"] and result["text"]
        assert all(reader.end["state"] == result["state"] for reader in result["readers"])
        assert any(reader.reconnected for reader in result["readers"]), "the answer had ended before the kill"
