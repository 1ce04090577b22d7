"""Requests from the pages to the inference server."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from app import inference
from cli.launch.first_start import main as first_start
from speculoos.settings import Settings
from tests.tools.local_server import Handler, serving


class Accepts(Handler):
    """Answers everything with an empty object."""

    def do_POST(self) -> None:
        self.read_json()
        self.do_GET()

    def do_GET(self) -> None:
        self.send_json(200, {})


@pytest.fixture
def server() -> Iterator[str]:
    with serving(Accepts) as url:
        yield url


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
