"""Page sessions cost the server little, and a page's document is the same for all visitors, whoever came first."""

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
    holder = gradio_app(pages).state_holder
    block = next(iter(holder.blocks.default_config.blocks))
    holder["first"]._update_value_in_config(block, "x" * 1000)
    assert not holder["first"].config_values
    assert holder["first"][block] is holder.blocks.default_config.blocks[block]


def test_what_changes_in_one_opened_page_is_not_in_another(pages: Any) -> None:
    holder = gradio_app(pages).state_holder
    block = next(number for number, component in holder.blocks.blocks.items() if not component.stateful)
    holder["first"][block] = changed = object.__new__(type(holder.blocks.blocks[block]))
    changed.__dict__.update(holder.blocks.blocks[block].__dict__)
    assert holder["first"][block] is changed
    assert holder["second"][block] is holder.blocks.blocks[block]


def test_the_number_of_sessions_is_limited(pages: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = gradio_app(pages).state_holder
    assert holder.capacity == page_sessions.MOST
    monkeypatch.setattr(holder, "capacity", 3)
    for number in range(5):
        assert holder[f"session {number}"] is not None
    assert list(holder.session_data) == ["session 2", "session 3", "session 4"]


@pytest.mark.parametrize("path", PAGES.values())
def test_a_document_is_rendered_once(pages: Any, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = get(pages, path)
    monkeypatch.setattr(gradio_app(pages), "get_blocks", lambda: pytest.fail("written again"))
    again = get(pages, path)
    assert (first.status, again.status) == (200, 200)
    assert again.body == first.body and len(again.body) > 1000


def test_an_idle_server_sleeps(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio's queue would wake the server 1,100 times a second."""
    app, wakeups = make_app(settings), []

    async def serve() -> None:
        selector = asyncio.get_running_loop()._selector
        select = selector.select
        async with app.router.lifespan_context(app):
            await asyncio.sleep(0.5)
            # count the waits of the event loop; without the fix there are about 1,000
            monkeypatch.setattr(selector, "select", lambda timeout=None: wakeups.append(timeout) or select(timeout))
            await asyncio.sleep(1.0)

    run_async(serve())
    assert len(wakeups) < 30


def test_a_cookie_is_each_browsers_own(pages: Any) -> None:
    first, second = get(pages, "/data"), get(pages, "/data")
    assert first.cookies() and second.cookies() and first.cookies() != second.cookies()


def test_no_header_of_one_visitor_is_in_the_document_of_the_next(settings: Settings) -> None:
    app = make_app(settings)
    headers = ("x-gradio-server", "x-forwarded-host", "x-forwarded-prefix", "x-forwarded-uri")
    for path, header in zip(PAGES.values(), headers, strict=False):
        get(app, path, **{header: "evil.example"})
        after = get(app, path)
        assert after.status == 200 and b"evil.example" not in after.body


def test_another_name_of_this_machine_gets_its_own_addresses(pages: Any) -> None:
    port = "7860"
    assert f"http://localhost:{port}".encode() in get(pages, "/runs/new", host=f"localhost:{port}").body
    assert f"http://127.0.0.1:{port}".encode() in get(pages, "/runs/new", host=f"127.0.0.1:{port}").body
