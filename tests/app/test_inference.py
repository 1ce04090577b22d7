"""Requests from the pages to the inference server."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from app import inference
from cli.launch.first_start import main as first_start
from speculoos.settings import Settings


class Accepts(BaseHTTPRequestHandler):
    """Answers everything with an empty object."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Accepts) as http_server:
        thread = threading.Thread(target=http_server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{http_server.server_port}"
        http_server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a proxy for the internet that does not listen."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def test_the_pages_bypass_a_proxy_to_reach_the_inference_server(home: Settings, server: str) -> None:
    inference._post(replace(home, inference_url=server, inference_token="t"), "/runs/x")


def test_a_health_check_bypasses_a_proxy_too(server: str) -> None:
    assert first_start(["--ping", f"{server}/healthz"]) == 0
