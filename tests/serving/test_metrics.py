"""GET /metrics in Prometheus' format needs the token, GET /readyz does not."""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from serving.metrics import PREFIX
from speculoos.settings import PROJECT_ROOT
from tests.serving.conftest import HEADS, TOKEN, Served, until

pytestmark = pytest.mark.integration


def figures(served: Served) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, as Prometheus reads it."""
    response = httpx.get(f"{served.url}/metrics", headers=served.headers)
    assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(response.text)
    return {(s.name.removeprefix(f"{PREFIX}_"), *s.labels.values()): s.value for f in families for s in f.samples}


def test_an_answer_is_counted(served: Served) -> None:
    served.wait_idle()
    with served.client() as client:
        client.post("/v1/chat/completions", json=served.chat_request("cycle@right", max_tokens=40))
        until(lambda: ("tokens_generated_total", "medusa") in figures(served))
        before = figures(served)
        assert (
            client.post("/v1/chat/completions", json=served.chat_request("cycle@right", max_tokens=40)).status_code
            == 200
        )
        request = served.chat_request("cycle@right", max_tokens=40, stream=True)
        with client.stream("POST", "/v1/chat/completions", json=request) as stream:
            list(stream.iter_lines())
        client.post("/v1/chat/completions", json=served.chat_request("nothing"))
    route = "/v1/chat/completions"
    until(lambda: figures(served)["request_seconds_count", route, "404"] >= 1)
    after = figures(served)

    def increase(*name: str) -> float:
        return after[name] - before.get(name, 0)

    assert increase("tokens_generated_total", "medusa") == 80
    assert increase("request_seconds_count", route, "200") == 2
    assert increase("queue_wait_seconds_count") == 2 and increase("prompt_seconds_count") == 2
    tau = increase("verified_tokens_total", "medusa") / increase("verifications_total", "medusa")
    assert tau == after["mean_accepted_length", "medusa"] == HEADS + 1
    assert after["tokens_per_second", "medusa"] > 0 and increase("generation_seconds_total", "medusa") > 0
    assert after["pool_bytes",] == served.engine.pool.nbytes > 0
    assert after["device_alive",] == 1 and after["device_heartbeat_age_seconds",] < 10
    assert after["queue_length",] == after["queue_lanes",] == 0 and after["panics_survived_total",] >= 0


def test_addresses_without_a_route_share_one_label(served: Served) -> None:
    for number in range(3):
        httpx.get(f"{served.url}/nothing/{number}")
    httpx.get(f"{served.url}/v1/models/x", headers=served.headers)
    routes = {name[1] for name in figures(served) if name[0] == "request_seconds_count"}
    assert "other" in routes and "/v1/models/{name:path}" in routes and not any("nothing" in name for name in routes)


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
def test_figures_need_the_token_also_from_loopback(served: Served, headers: dict[str, str]) -> None:
    """Behind a proxy on the same machine every request comes from loopback."""
    response = httpx.get(f"{served.url}/metrics", headers=headers)
    assert response.status_code == 401 and PREFIX not in response.text
    assert httpx.get(f"{served.url}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_readiness_needs_no_token(served: Served) -> None:
    response = httpx.get(f"{served.url}/readyz")
    assert response.status_code == 200 and response.json() == {"ready": True, "device": "ok", "database": "ok"}


def test_every_figure_is_documented(served: Served) -> None:
    text = (PROJECT_ROOT / "docs" / "serving.md").read_text()
    names = {f.name for f in text_string_to_metric_families(served.engine.metrics.text().decode())}
    assert not [name for name in names if name.startswith(PREFIX) and f"`{name.removeprefix(PREFIX)[1:]}" not in text]
