"""The canary for upgrades of Gradio: no event, input or route of the real pages serves a file.

A file with a random text lies outside of the home. Tests send a reference to it to every input of every event, one by
one. The text must then appear in no response, no upload and at no address.
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from app.gradio_gate import UNANSWERABLE
from app.main import make_app
from speculoos.settings import Settings, load
from tests.tools.asgi import ask, gradio_app
from tests.tools.databases import migrate
from tests.tools.loops import run_async

EVENT = "/gradio_api/run/predict"
META = {"_type": "gradio.FileData"}


@dataclass
class Bench:
    """The application of a home, and a file that it must not serve."""

    app: FastAPI
    settings: Settings
    canary: Path
    text: str
    cookie: str = ""

    @property
    def blocks(self) -> Any:
        return gradio_app(self.app).get_blocks()

    def file(self, **fields: Any) -> dict[str, Any]:
        """The file in Gradio's format."""
        return {"path": str(self.canary), "meta": META, **fields}

    def leaked(self) -> list[Path]:
        """Copies of the canary in the home."""
        files = [path for path in (self.settings.home / "uploads").rglob("*") if path.is_file()]
        return [path for path in files if self.text.encode() in path.read_bytes()]


def bench(folder: Path, **changes: str) -> Bench:
    settings = replace(load({"SPECULOOS_HOME": str(folder / "home")}), **changes)
    migrate(settings)
    text = f"canary {secrets.token_hex(16)}"
    (folder / "canary.txt").write_text(text)
    return Bench(make_app(settings), settings, folder / "canary.txt", text)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Pages without a login, with the cookie of a browser."""
    pages = bench(tmp_path_factory.mktemp("open"))
    pages.cookie = run_async(ask(pages.app, "GET", "/data")).cookies()
    yield pages


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Pages behind a password, with the cookie of someone who is logged in."""
    pages = bench(tmp_path_factory.mktemp("locked"), password="cinnamon")
    form = b"password=cinnamon&next=/"
    response = run_async(ask(pages.app, "POST", "/login", form, "application/x-www-form-urlencoded"))
    assert response.status == 303
    pages.cookie = response.cookies()
    yield pages


def payload(fn: Any, index: int, value: Any, **fields: Any) -> bytes:
    """An event whose input number `index` is `value`; the others are empty."""
    data: list[Any] = [None] * max(len(fn.inputs), index + 1)
    data[index] = value
    return json.dumps({"data": data, "fn_index": fn._id, "session_hash": "canary", **fields}).encode()


async def walk(bench: Bench, cookie: str, expected: int) -> int:
    """Send a file to every input of every event: as it is, in a list, and nested in lists and tables.

    Returns the number of inputs. Fails at the first response that has another status or contains the text.
    """
    count, file = 0, bench.file()
    deep = {"value": [None, {"value": [file]}]}
    for fn in bench.blocks.fns.values():
        for index in range(len(fn.inputs)):
            for value in (file, [file], deep):
                response = await ask(bench.app, "POST", EVENT, payload(fn, index, value), cookie=cookie)
                assert response.status == expected, (
                    f"event {fn._id} ({fn.name}), input {index}: {response.body[:200]!r}"
                )
                assert bench.text.encode() not in response.body
            count += 1
    return count


def test_no_input_of_any_event_takes_a_file_of_the_server(opened: Bench) -> None:
    assert run_async(walk(opened, opened.cookie, 400)) > 300
    assert not opened.leaked()


def test_behind_a_password_no_file_is_served_with_or_without_login(locked: Bench) -> None:
    assert run_async(walk(locked, "", 401)) == run_async(walk(locked, locked.cookie, 400)) > 300
    assert not locked.leaked()


@pytest.mark.parametrize(
    "path",
    [
        "/gradio_api/queue/join",
        "/gradio_api/run/predict/",
        "/gradio_api/run/refresh",
        "/gradio_api/api/predict",
        "/gradio_api/api/predict/",
        "/gradio_api/call/predict",
        "/gradio_api/call/v2/predict",
        "/gradio_api/stream/abc",
        "/gradio_api/component_server",
        "/gradio_api/process_recording",
        "/gradio_api/vibe-edit",
        "/gradio_api/mcp",
        "/gradio_api/mcp/sse",
        "/gradio_api//run/predict",
        "//gradio_api/run/predict",
    ],
)
def test_no_other_route_takes_an_event(opened: Bench, path: str) -> None:
    fn = next(fn for fn in opened.blocks.fns.values() if fn.inputs)
    for body in (payload(fn, 0, opened.file()), json.dumps({"data": opened.file()}).encode()):
        assert run_async(ask(opened.app, "POST", path, body, cookie=opened.cookie)).status == 404
    assert not opened.leaked()


def test_events_with_a_file_in_another_place_are_refused(opened: Bench) -> None:
    """In the event data, deep in lists, and after the last input. No input is a text that Gradio reads as JSON."""
    fns = opened.blocks.fns.values()
    fn = next(fn for fn in fns if fn.inputs)
    assert not [f for f in fns for block in f.inputs if type(block).__name__ == "JSON"]
    deep = payload(fn, 0, "deep").replace(b'"deep"', b"[" * 50 + b"1" + b"]" * 50)
    deeper = deep.replace(b"[1]", b"[" * 5000 + b"]" * 5000)
    bodies = [
        payload(fn, 0, None, event_data={"value": [opened.file()]}),
        *(deep, deeper),
        payload(fn, len(fn.inputs), opened.file()),
        payload(fn, 0, opened.file()).replace(b'"path"', b'"pa\\u0074h"'),
        payload(fn, 0, opened.file()).decode().encode("utf-16"),
        b'{"data": [], ' + payload(fn, 0, opened.file())[1:],
    ]
    for body in bodies:
        for kind in ("application/json", "text/plain", ""):
            assert run_async(ask(opened.app, "POST", EVENT, body, kind, cookie=opened.cookie)).status == 400, body[:200]
    assert not opened.leaked()


def test_addresses_and_forms_that_gradio_cannot_read_are_refused(
    opened: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/assets/" + "a" * 300, "/static/" + "a/" * 3000):
        assert run_async(ask(opened.app, "GET", path, cookie=opened.cookie)).status == 404
    for name, boundary in ((b"", b"x"), (b"; filename=a", b"x" * 1000)):
        part = b"\r\nContent-Disposition: form-data; name=files" + name + b"\r\n\r\nwords\r\n"
        form, kind = b"--" + boundary + part + b"--" + boundary + b"--\r\n", "multipart/form-data; boundary="
        kind += boundary.decode()
        response = run_async(ask(opened.app, "POST", "/gradio_api/upload", form, kind, cookie=opened.cookie))
        assert response.status == 400 and UNANSWERABLE.encode() in response.body
    assert [line for line in caplog.messages if line.startswith("/gradio_api/upload was refused: ")]
    assert "words" not in caplog.text


def served_paths(routes: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(method, path) of every route, including those of included routers."""
    for route in routes:
        inner = getattr(route, "original_router", None) or getattr(route, "app", None)
        if hasattr(route, "methods") and hasattr(route, "path"):
            yield from ((method, prefix + route.path) for method in route.methods)
        elif hasattr(inner, "routes"):
            yield from served_paths(inner.routes, prefix + getattr(route, "path", ""))


def test_every_route_of_gradio_that_the_pages_do_not_use_is_closed(opened: Bench) -> None:
    """Fails on a new route of a later version of Gradio: it must be closed, or be added to this list."""
    used = {
        *(("POST", "/gradio_api/run/{api_name}"), ("POST", "/gradio_api/upload")),
        *(("GET", path) for path in ("/gradio_api/upload_progress", "/gradio_api/app_id", "/theme.css")),
        *(("GET", path) for path in ("/favicon.ico", "/robots.txt", "/assets/{path:path}", "/static/{path:path}")),
    }
    pages = {("GET", f"/{page}") for page, *_ in opened.blocks.pages}
    served = set(served_paths(gradio_app(opened.app).routes))
    assert len(served) > 50 and used <= served, sorted(served)
    for method, path in sorted(served - used - pages - {("HEAD", "/"), ("GET", "/")}):
        url = path.replace("{path_or_url:path}", str(opened.canary)).replace("{path:path}", str(opened.canary))
        url = url.replace("{url_path:path}", "http://127.0.0.1:1/x").replace("{", "").replace("}", "")
        response = run_async(ask(opened.app, method, url, b"{}", cookie=opened.cookie))
        assert response.status in (404, 405), (method, path, response.status)
        assert opened.text.encode() not in response.body
