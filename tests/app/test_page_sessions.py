"""An opened page costs the server little, and a page's document is the same for all who ask, whoever asked first."""

import asyncio
from typing import Any

import pytest

from app import page_sessions
from app.main import make_app
from app.paths import PAGES
from speculoos.settings import Settings
from tests.tools.asgi import Answer, ask, gradio_app
from tests.tools.loops import run_async


@pytest.fixture(scope="module")
def pages(settings: Settings) -> Any:
    return make_app(settings)


def get(pages: Any, path: str, **headers: str) -> Answer:
    return run_async(ask(pages, "GET", path, **headers))


def test_an_opened_page_holds_no_description_of_all_components(pages: Any) -> None:
    kept = gradio_app(pages).state_holder
    block = next(iter(kept.blocks.default_config.blocks))
    kept["first"]._update_value_in_config(block, "x" * 1000)
    assert not kept["first"].config_values
    assert kept["first"][block] is kept.blocks.default_config.blocks[block]


def test_what_changes_in_one_opened_page_is_not_in_another(pages: Any) -> None:
    kept = gradio_app(pages).state_holder
    block = next(number for number, one in kept.blocks.blocks.items() if not one.stateful)
    kept["first"][block] = changed = object.__new__(type(kept.blocks.blocks[block]))
    changed.__dict__.update(kept.blocks.blocks[block].__dict__)
    assert kept["first"][block] is changed
    assert kept["second"][block] is kept.blocks.blocks[block]


def test_the_server_keeps_so_many_and_no_more(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = gradio_app(pages).state_holder
    assert kept.capacity == page_sessions.MOST
    monkeypatch.setattr(kept, "capacity", 3)
    for number in range(5):
        assert kept[f"session {number}"] is not None
    assert list(kept.session_data) == ["session 2", "session 3", "session 4"]


@pytest.mark.parametrize("path", PAGES.values())
def test_a_document_is_written_once(pages: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get(pages, path)
    monkeypatch.setattr(gradio_app(pages), "get_blocks", lambda: pytest.fail("written again"))
    again = get(pages, path)
    assert (first.status, again.status) == (200, 200)
    assert again.body == first.body and len(again.body) > 1000


def test_a_server_that_nobody_asks_sleeps(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio's queue would wake it 1,100 times a second."""
    unasked, woken = make_app(settings), []

    async def serve() -> None:
        waits = asyncio.get_running_loop()._selector
        look = waits.select
        async with unasked.router.lifespan_context(unasked):
            await asyncio.sleep(0.5)
            # the loop's own wait, counted and then made as ever; without the mend it is made some 1,000 times
            monkeypatch.setattr(waits, "select", lambda timeout=None: woken.append(timeout) or look(timeout))
            await asyncio.sleep(1.0)

    run_async(serve())
    assert len(woken) < 30


def test_a_cookie_is_each_browsers_own(pages: Any) -> None:
    first, second = get(pages, "/data"), get(pages, "/data")
    assert first.cookies() and second.cookies() and first.cookies() != second.cookies()


def test_no_header_of_one_visitor_is_in_the_document_of_the_next(settings: Settings) -> None:
    unasked = make_app(settings)
    headers = ("x-gradio-server", "x-forwarded-host", "x-forwarded-prefix", "x-forwarded-uri")
    for path, header in zip(PAGES.values(), headers, strict=False):
        get(unasked, path, **{header: "evil.example"})
        after = get(unasked, path)
        assert after.status == 200 and b"evil.example" not in after.body


def test_another_name_of_this_machine_gets_its_own_addresses(pages: Any) -> None:
    port = "7860"
    assert f"http://localhost:{port}".encode() in get(pages, "/runs/new", host=f"localhost:{port}").body
    assert f"http://127.0.0.1:{port}".encode() in get(pages, "/runs/new", host=f"127.0.0.1:{port}").body
