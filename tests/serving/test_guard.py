"""The guard refuses what a foreign web page or a rebound name could send, and lets our own clients through."""

from collections.abc import AsyncIterator
from dataclasses import replace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

from serving.engine import Engine
from serving.main import create_app
from speculoos.guard import PAGES_POLICY, RequestGuard
from speculoos.settings import Settings
from tests.tools.loops import run_async

pytestmark = pytest.mark.integration

PORT = 7861


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text("hello")
    await websocket.close()


def client(base_url: str = f"http://127.0.0.1:{PORT}", **options: object) -> TestClient:
    inner = Starlette(routes=[Route("/", echo, methods=["GET", "POST"]), WebSocketRoute("/ws", socket)])
    return TestClient(RequestGuard(inner, port=PORT, **options), base_url=base_url)


@pytest.mark.parametrize("host", [f"127.0.0.1:{PORT}", f"localhost:{PORT}", f"LOCALHOST:{PORT}", f"[::1]:{PORT}"])
def test_loopback_names_with_our_port_are_served(host: str) -> None:
    assert client().get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        f"evil.example:{PORT}",  # DNS rebinding: resolves to 127.0.0.1, names itself
        f"127.0.0.1.evil.example:{PORT}",
        "127.0.0.1",
        "localhost:80",
        f"0.0.0.0:{PORT}",
        f"user@127.0.0.1:{PORT}",
        f"127.0.0.1:{PORT}/x",
        "127.0.0.1:port",
        f"[::1]]:{PORT}",
        "",
    ],
)
def test_other_hosts_are_refused_with_a_sentence(host: str) -> None:
    response = client().get("/", headers={"Host": host})
    assert response.status_code == 403
    assert "SPECULOOS_ALLOWED_HOSTS" in response.json()["error"]["message"]


def test_two_host_headers_are_refused() -> None:
    headers = [("Host", f"127.0.0.1:{PORT}"), ("Host", "evil.example")]
    assert client().get("/", headers=httpx.Headers(headers)).status_code == 403


def test_an_allowed_name_is_served_on_any_port_or_on_the_one_it_names() -> None:
    allowed = client(allowed_hosts=("inference", "box.lan:8080"))
    assert allowed.get("/", headers={"Host": "inference:1234"}).status_code == 200
    assert allowed.get("/", headers={"Host": "box.lan:8080"}).status_code == 200
    assert allowed.get("/", headers={"Host": "box.lan:9090"}).status_code == 403


@pytest.mark.parametrize("origin", [f"http://127.0.0.1:{PORT}", f"http://localhost:{PORT}", None])
def test_posts_from_our_own_pages_and_from_programs_are_served(origin: str | None) -> None:
    assert client().post("/", headers={"Origin": origin} if origin else {}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",  # sandboxed frame, file:// page
        "https://evil.example",
        "http://127.0.0.1:3000",  # another program's page on this machine
        "http://127.0.0.1",
        f"http://evil.example:{PORT}",
        f"http://127.0.0.1:{PORT}.evil.example",
        "chrome-extension://abcdef",
        "file://",
        "",
    ],
)
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "GET"])
def test_other_origins_are_refused(origin: str, method: str) -> None:
    assert client().request(method, "/", headers={"Origin": origin}).status_code == 403


def test_an_origin_behind_a_proxy_that_keeps_the_host_is_served() -> None:
    proxied = client(allowed_hosts=("work.example",))
    headers = {"Host": "work.example", "Origin": "https://work.example"}
    assert proxied.post("/", headers=headers).status_code == 200


def test_another_port_of_an_allowed_name_may_not_post() -> None:
    named = client(allowed_hosts=("box.lan",))
    for origin, status in (("http://box.lan:9999", 403), ("http://box.lan:7860", 200), ("https://box.lan", 200)):
        assert named.post("/", headers={"Host": "box.lan:7860", "Origin": origin}).status_code == status


def test_malformed_headers_are_refused_without_an_error() -> None:
    assert client().post("/", headers={"Origin": "http://[::1"}).status_code == 403
    assert client().post("/", headers={"Content-Length": "9" * 5000}).status_code < 500


def test_a_cross_site_script_tag_is_refused_but_a_link_is_followed() -> None:
    script = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
    assert client().get("/", headers=script).status_code == 403
    assert client().get("/", headers=link).status_code == 200
    assert client().post("/", headers=link).status_code == 403


def test_websockets_need_our_origin_too() -> None:
    with client().websocket_connect("/ws", headers={"Host": f"127.0.0.1:{PORT}"}) as ws:
        assert ws.receive_text() == "hello"
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}):
        named = {"Host": f"127.0.0.1:{PORT}", **headers}
        with (
            pytest.raises((WebSocketDisconnect, WebSocketDenialResponse)),
            client().websocket_connect("/ws", headers=named) as ws,
        ):
            ws.receive_text()


def test_security_headers_are_on_answers_and_on_refusals() -> None:
    for response in (client().get("/"), client().get("/", headers={"Host": "evil.example"})):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert response.headers["referrer-policy"] == "same-origin"
        assert "frame-ancestors 'self'" in response.headers["content-security-policy"]
    assert client(policy=PAGES_POLICY).get("/").headers["content-security-policy"] == PAGES_POLICY


def test_a_body_past_the_bound_is_refused_before_and_while_it_is_read() -> None:
    bounded = client(max_body_bytes=1000)
    assert bounded.post("/", content=b"x" * 1000).text == "1000"
    assert bounded.post("/", content=b"x" * 1001).status_code == 413

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(bounded.app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{PORT}") as unsized:
            return await unsized.post("/", content=chunks())

    response = run_async(send())
    assert response.status_code == 413
    assert "larger than" in response.json()["error"]["message"]


def test_a_client_that_leaves_before_its_body_has_come_is_no_error() -> None:
    async def disconnect() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: object) -> None:
        raise AssertionError(message)

    async def read(scope: dict, receive: object, send: object) -> None:
        await Request(scope, receive).body()

    headers = [(b"host", f"127.0.0.1:{PORT}".encode())]
    scope = {"type": "http", "method": "POST", "scheme": "http", "path": "/", "headers": headers}
    run_async(RequestGuard(read, port=PORT, max_body_bytes=9)(scope, disconnect, send))


def test_the_inference_server_is_served_at_its_published_port_and_needs_its_token_there(home: Settings) -> None:
    settings = replace(
        home, inference_token="x", inference_host="0.0.0.0", publish_inference_port=9001, publish_address="192.168.7.5"
    )
    engine = Engine(settings)
    try:
        app = create_app(settings, engine)
        for host, status in (("192.168.7.5:9001", 401), ("localhost:9001", 401), ("192.168.7.5:9002", 403)):
            unauthenticated = TestClient(app, base_url=f"http://{host}")
            assert unauthenticated.get("/v1/models").status_code == status
        authenticated = TestClient(app, base_url="http://127.0.0.1:9001", headers={"Authorization": "Bearer x"})
        assert authenticated.get("/v1/models").status_code == 200
    finally:
        engine.close()
