"""The container stack: published ports and addresses, the vLLM services, and the variables of every service."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from speculoos.guard import RequestGuard
from speculoos.settings import load

CLONE = Path(__file__).resolve().parents[2]
FILES = ("docker-compose.yml", "docker-compose.gpu.yml", "docker-compose.vllm.yml")
COMPOSE = "".join((CLONE / name).read_text() for name in FILES)
EXAMPLE = (CLONE / ".env.example").read_text()
VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")


def variables() -> dict[str, str]:
    """Each variable of the compose files with its default."""
    return dict(VARIABLE.findall(COMPOSE))


def filled(text: str, **environment: str) -> str:
    """`text` as compose reads it with these variables set."""
    return VARIABLE.sub(lambda match: environment.get(match[1], match[2]), text)


def service(name: str, file: str = FILES[0], **environment: str) -> dict:
    return yaml.safe_load(filled((CLONE / file).read_text(), **environment))["services"][name]


def test_only_loopback_is_published_by_default() -> None:
    assert service("web")["ports"] == ["127.0.0.1:7860:7860"]
    assert service("inference")["ports"] == ["127.0.0.1:7861:7861"]


def status(hosts: tuple[str, ...], port: int, host: str) -> int:
    async def page(request: object) -> PlainTextResponse:
        return PlainTextResponse("ok")

    guard = RequestGuard(Starlette(routes=[Route("/", page, methods=["GET", "POST"])]), port=port, allowed_hosts=hosts)
    headers = {"Host": host, "Origin": f"http://{host}"}
    return TestClient(guard, base_url=f"http://{host}").post("/", headers=headers).status_code


@pytest.mark.parametrize("name, port", [("web", 7860), ("inference", 7861)])
def test_another_published_port_or_address_is_served(name: str, port: int) -> None:
    """The container's settings and its request guard follow the variables that compose passes."""
    overrides = {
        "SPECULOOS_PUBLISH_PORT": "9000",
        "SPECULOOS_PUBLISH_INFERENCE_PORT": "9001",
        "SPECULOOS_PUBLISH_ADDRESS": "192.168.7.5",
        "SPECULOOS_ALLOWED_HOSTS": "box.lan",
    }
    definition = service(name, **overrides)
    published = {"web": "9000", "inference": "9001"}[name]
    assert definition["ports"] == [f"192.168.7.5:{published}:{port}"]
    passed = {key: value for key, value in definition["environment"].items() if value is not None}
    environment = {key: str(value) for key, value in passed.items() if not key.endswith("_FILE")}
    settings = load(environment)
    hosts = settings.page_hosts if name == "web" else settings.inference_hosts
    for host in (f"192.168.7.5:{published}", f"127.0.0.1:{published}", f"localhost:{published}", "box.lan:1234"):
        assert status(hosts, port, host) == 200, host
    for host in (f"evil.example:{published}", "127.0.0.1:9002", "192.168.7.5:7860"):
        assert status(hosts, port, host) == 403, host


def test_the_printed_address_is_the_published_one() -> None:
    assert load({}).url == "http://127.0.0.1:7860"
    inside = {"SPECULOOS_HOST": "0.0.0.0", "SPECULOOS_PASSWORD": "x", "SPECULOOS_PUBLISH_PORT": "9000"}
    assert load(inside).url == "http://127.0.0.1:9000"
    assert load({**inside, "SPECULOOS_PUBLISH_ADDRESS": "192.168.7.5"}).url == "http://192.168.7.5:9000"
    assert load({**inside, "SPECULOOS_PUBLISH_ADDRESS": "0.0.0.0"}).url == "http://127.0.0.1:9000"


def test_a_home_on_every_address_names_no_host() -> None:
    hosts = load({"SPECULOOS_PUBLISH_PORT": "9000", "SPECULOOS_PUBLISH_ADDRESS": "0.0.0.0"}).page_hosts
    assert hosts == ("127.0.0.1:9000", "localhost:9000", "[::1]:9000")
    assert load({}).page_hosts == ()


def test_vllm_serves_one_model_and_only_inside_the_stack() -> None:
    overrides = {"VLLM_MODEL": "owner/name", "VLLM_GPUS": "4", "VLLM_IMAGE": "vllm/vllm-openai:v1"}
    for name in ("vllm", "vllm-states"):
        definition = service(name, FILES[2], **overrides)
        assert definition["image"] == "vllm/vllm-openai:v1" and "vllm serve" in " ".join(definition["entrypoint"])
        assert definition["command"][0] == "owner/name" and "--tensor-parallel-size=4" in definition["command"]
        (device,) = definition["deploy"]["resources"]["reservations"]["devices"]
        assert device["count"] == "4" and device["driver"] == "nvidia"
        assert "ports" not in definition, "its protocol asks nobody for a password"
    assert service("vllm-states", FILES[2])["profiles"] == ["states"] and "profiles" not in service("vllm", FILES[2])


def has_compose() -> bool:
    docker = shutil.which("docker")
    return bool(docker) and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0


def test_every_service_of_ours_knows_the_store_and_its_keys() -> None:
    for name in ("web", "inference", "worker-gpu", "worker-io", "reconciler"):
        environment = service(name, SPECULOOS_STORE="s3://bucket/files")["environment"]
        assert environment["SPECULOOS_STORE"] == "s3://bucket/files"
        passed_on = {key for key, value in environment.items() if value is None}
        assert {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL"} <= passed_on
