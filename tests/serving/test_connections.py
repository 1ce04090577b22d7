"""Connections that send slowly, endless headers or many requests at once are closed before a token is checked."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import uvicorn

from serving import main
from serving.errors import STOPPING
from serving.main import server_config
from serving.metrics import RequestTimer
from speculoos import connections
from tests.serving.conftest import until

pytestmark = pytest.mark.integration

HEAD = b"POST /x HTTP/1.1\r\nHost: x\r\n"


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Responds with the length of the body; without a token with 401 and without reading it."""
    assert scope["type"] == "http"
    authorized, length, more = any(name == b"authorization" for name, _ in scope["headers"]), 0, True
    while authorized and more:
        message = await receive()
        length, more = length + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200 if authorized else 401, "headers": []})
    await send({"type": "http.response.body", "body": str(length).encode()})


@contextmanager
def running(app: Any) -> Iterator[tuple[uvicorn.Server, int]]:
    """Serves the app on a free port with the configuration of the inference server."""
    config = server_config(app)
    config.lifespan = "off"
    server, listening = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield server, listening.getsockname()[1]
    server.should_exit = True
    thread.join(30)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(app) as (_, port):
        yield port


def closed_after(port: int, data: bytes) -> bytes:
    """Send only `data`; returns the response until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        response = b""
        try:
            connection.sendall(data)
            while part := connection.recv(65536):
                response += part
        except ConnectionError:
            pass
        return response


@pytest.mark.parametrize(
    "data",
    [
        b"",
        HEAD,
        HEAD + b"Authorization: x\r\nContent-Length: 9\r\n\r\n{",
        HEAD + b"Content-Length: 9\r\n\r\n{",
        HEAD + b"Content-Length: 0\r\n\r\n" + HEAD,
    ],
)
def test_a_request_that_never_ends_is_closed(port: int, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    is_answered = b"\r\n\r\n" in data and b"Authorization" not in data
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0 if is_answered else 0.1)
    assert closed_after(port, data).count(b"HTTP/1.1 ") == is_answered


def test_a_large_upload_over_a_slow_line_is_served(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 1.0)
    monkeypatch.setattr(connections, "BYTES_PER_SECOND", 10.0)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(HEAD + b"Authorization: x\r\nContent-Length: 60\r\n\r\n")
        for _ in range(6):
            connection.sendall(b"x" * 10)
            time.sleep(0.2)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


CHUNKED = HEAD + b"Authorization: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"


@pytest.mark.parametrize("head", [HEAD, CHUNKED], ids=["headers", "trailers"])
@pytest.mark.parametrize("data", [b"X: " + b"a" * 2**20, b"X:\r\n" * 2 * connections.MAX_HEADERS], ids=["long", "many"])
def test_headers_without_end_are_closed(port: int, head: bytes, data: bytes) -> None:
    assert closed_after(port, head + data)[:12] in (b"", b"HTTP/1.1 400")


def test_many_requests_without_waiting_for_answers_are_closed(port: int) -> None:
    request, last = HEAD + b"Content-Length: 0\r\n\r\n", HEAD + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
    assert b"HTTP/1.1 400" in closed_after(port, request * 1000)
    answers = closed_after(port, request * connections.MAX_PIPELINED + last)
    assert answers.count(b"HTTP/1.1 401") == connections.MAX_PIPELINED + 1


def test_an_answer_that_comes_after_its_connection_was_closed_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    async def late(scope: dict[str, Any], receive: Any, send: Any) -> None:
        await asyncio.sleep(0.05)
        await app(scope, receive, send)

    with running(late) as (server, port):
        assert b"HTTP/1.1 400" in closed_after(port, (HEAD + b"Content-Length: 0\r\n\r\n") * 100)
        until(lambda: not server.server_state.tasks)
    assert "Exception in ASGI" not in caplog.text


def test_a_line_break_after_an_answer_holds_no_connection(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(HEAD + b"Content-Length: 0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.1)
        connection.sendall(b"\r\n")
        while connection.recv(65536):
            pass


def test_large_bodies_and_reused_connections_are_served(port: int) -> None:
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": "x"}) as client:
        for size in (0, 10, 5_000_000, 10):
            assert client.post("/x", content=b"x" * size).text == str(size)


def test_a_request_under_way_when_the_server_stops_gets_503_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def endless(scope: dict[str, Any], receive: Any, send: Any) -> None:
        server.should_exit = True
        await asyncio.Event().wait()

    monkeypatch.setattr(main, "STOP_SECONDS", 0)
    observed: list[str] = []
    timed = RequestTimer(endless, lambda route, status: lambda seconds: observed.append(status))
    with running(timed) as (server, port):
        response = httpx.get(f"http://127.0.0.1:{port}/", timeout=30)
    assert response.status_code == 503 and response.json()["error"]["message"] == STOPPING
    assert observed == ["503"] and "Exception in ASGI" not in caplog.text
