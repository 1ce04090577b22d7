"""The container stack: what may be set is explained, and one variable moves it to another port."""

import re
from pathlib import Path

import pytest
import yaml
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from launch.up import url
from speculoos.guard import Guard
from speculoos.settings import load

CLONE = Path(__file__).resolve().parents[2]
COMPOSE = (CLONE / "docker-compose.yml").read_text() + (CLONE / "docker-compose.gpu.yml").read_text()
EXAMPLE = (CLONE / ".env.example").read_text()
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def variables() -> dict[str, str]:
    """Each variable of the compose files with its default."""
    return dict(VARIABLE.findall(COMPOSE))


def filled(text: str, **given: str) -> str:
    """`text` as compose reads it with these variables set."""
    return VARIABLE.sub(lambda match: given.get(match[1], match[2]), text)


def service(name: str, **given: str) -> dict:
    return yaml.safe_load(filled((CLONE / "docker-compose.yml").read_text(), **given))["services"][name]


def test_every_variable_is_explained_with_its_default() -> None:
    assert len(variables()) >= 5
    assert len(re.findall(r"\$\{?\w", COMPOSE)) == len(VARIABLE.findall(COMPOSE)), "a variable without a default"
    for name, default in variables().items():
        assert re.search(rf"^# .+\n{name}={re.escape(default)}$", EXAMPLE, re.MULTILINE), name
    assert set(re.findall(r"^(\w+)=", EXAMPLE, re.MULTILINE)) == set(variables())


def test_only_loopback_is_published_unless_told_otherwise() -> None:
    assert service("web")["ports"] == ["127.0.0.1:7860:7860"]
    assert service("inference")["ports"] == ["127.0.0.1:7861:7861"]


def status(hosts: tuple[str, ...], port: int, host: str) -> int:
    async def page(request: object) -> PlainTextResponse:
        return PlainTextResponse("ok")

    guard = Guard(Starlette(routes=[Route("/", page, methods=["GET", "POST"])]), port=port, allowed_hosts=hosts)
    headers = {"Host": host, "Origin": f"http://{host}"}
    return TestClient(guard, base_url=f"http://{host}").post("/", headers=headers).status_code


@pytest.mark.parametrize("name, port", [("web", 7860), ("inference", 7861)])
def test_another_published_port_or_address_is_served(name: str, port: int) -> None:
    """What compose gives the container is what its settings and its guard go by."""
    given = {
        "SPECULOOS_PUBLISH_PORT": "9000",
        "SPECULOOS_PUBLISH_INFERENCE_PORT": "9001",
        "SPECULOOS_PUBLISH_ADDRESS": "192.168.7.5",
        "SPECULOOS_ALLOWED_HOSTS": "box.lan",
    }
    made = service(name, **given)
    published = {"web": "9000", "inference": "9001"}[name]
    assert made["ports"] == [f"192.168.7.5:{published}:{port}"]
    environment = {key: str(value) for key, value in made["environment"].items() if not key.endswith("_FILE")}
    settings = load(environment)
    hosts = settings.page_hosts if name == "web" else settings.inference_hosts
    for host in (f"192.168.7.5:{published}", f"127.0.0.1:{published}", f"localhost:{published}", "box.lan:1234"):
        assert status(hosts, port, host) == 200, host
    for host in (f"evil.example:{published}", "127.0.0.1:9002", "192.168.7.5:7860"):
        assert status(hosts, port, host) == 403, host


def test_the_printed_address_is_the_published_one() -> None:
    assert url(load({})) == "http://127.0.0.1:7860"
    inside = {"SPECULOOS_HOST": "0.0.0.0", "SPECULOOS_PASSWORD": "x", "SPECULOOS_PUBLISH_PORT": "9000"}
    assert url(load(inside)) == "http://127.0.0.1:9000"
    assert url(load({**inside, "SPECULOOS_PUBLISH_ADDRESS": "192.168.7.5"})) == "http://192.168.7.5:9000"
    assert url(load({**inside, "SPECULOOS_PUBLISH_ADDRESS": "0.0.0.0"})) == "http://127.0.0.1:9000"


def test_a_home_on_every_address_names_no_host() -> None:
    hosts = load({"SPECULOOS_PUBLISH_PORT": "9000", "SPECULOOS_PUBLISH_ADDRESS": "0.0.0.0"}).page_hosts
    assert hosts == ("127.0.0.1:9000", "localhost:9000", "[::1]:9000")
    assert load({}).page_hosts == ()
