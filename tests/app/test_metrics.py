"""/metrics and /readyz: figures of rows and requests, access control and caching."""

from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from app import metrics
from app.main import make_app
from ops.health import HealthPart
from ops.metrics import MetricRows
from ops.storage import StorageMonitor
from speculoos.settings import Settings, load
from tests.tools.databases import database, migrate, postgres  # noqa: F401
from tests.tools.loops import run_async
from tracking import db, leases, processes, workload
from tracking.tables import Job, Preference, Run, now

TOKEN, PASSWORD = "scrape-me-please", "open sesame"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> TestClient:
    """An application behind a password, with a token for metrics."""
    home = tmp_path_factory.mktemp("home")
    environment = {"SPECULOOS_PASSWORD": PASSWORD, "SPECULOOS_METRICS_TOKEN": TOKEN}
    settings = load({"SPECULOOS_HOME": str(home), **environment})
    migrate(settings)
    return TestClient(make_app(settings), base_url="http://127.0.0.1:7860")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """(name, label values…) → value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def metric_rows(settings: Settings, fresh: float = 0.0) -> MetricRows:
    return MetricRows(settings, StorageMonitor(settings), fresh)


def collected(collector: MetricRows) -> dict[tuple[str, ...], float]:
    return {(s.name, *s.labels.values()): s.value for family in collector.collect() for s in family.samples}


def test_figures_are_those_of_the_rows(database: Settings) -> None:  # noqa: F811
    with db.writing(database) as session:
        session.add(Job(name="a", kind="train", queue="gpu", queued_at=now() - timedelta(seconds=90)))
        first = Job(name="b", kind="train", queue="gpu", state="RUNNING", attempt=3, heartbeat_at=now())
        session.add(first)
        session.flush()
        waiting = Job(name="c", kind="train", queue="io", after_id=first.id, queued_at=now() - timedelta(hours=3))
        session.add_all([waiting, Job(name="d", kind="x", queue="io", state="FAILED", attempt=2)])
        session.add(Run(kind="chat", model="m", state="SUCCEEDED"))
        processes.beat(session, "web")
        old = now() - timedelta(seconds=500)
        session.add(Preference(key="process:worker-gpu@h:1", value={"name": "worker-gpu"}, updated_at=old))
        assert leases.acquire(session, "cuda:0", "job:" + first.id, 60)
        workload.increment_counter(session, workload.LEASE_LOST)
        workload.increment_counter(session, workload.LEASE_LOST)
    figures = collected(metric_rows(database))
    assert figures["speculoos_jobs", "gpu", "QUEUED"] == 1 and figures["speculoos_jobs", "gpu", "RUNNING"] == 1
    assert figures["speculoos_jobs", "io", "FAILED"] == 1 and figures["speculoos_jobs", "io", "CANCELLED"] == 0
    assert 89 < figures["speculoos_job_oldest_wait_seconds", "gpu"] < 120
    assert figures["speculoos_job_oldest_wait_seconds", "io"] == 0, "it waits for a job, not for a worker"
    assert figures["speculoos_job_attempts_total", "gpu"] == 3 and figures["speculoos_job_attempts_total", "io"] == 2
    assert figures["speculoos_attempts_lost_total", "lease_lost"] == 2
    assert figures["speculoos_attempts_lost_total", "worker_gone"] == 0
    assert figures["speculoos_heartbeat_age_seconds", "worker-gpu"] > 499
    assert figures["speculoos_processes_alive", "web"] == 1 and figures["speculoos_processes_alive", "worker-gpu"] == 0
    assert (
        figures["speculoos_device_held", "cuda:0", "job"] == 1
        and figures["speculoos_device_held", "cuda:0", "run"] == 0
    )
    assert figures["speculoos_runs", "SUCCEEDED"] == 1 and figures[("speculoos_database_up",)] == 1
    assert figures[("speculoos_database_bytes",)] > 50_000 and figures[("speculoos_disk_free_bytes",)] > 0
    assert not any(first.id in str(value) for key in figures for value in key), "no label holds an id"


def test_frequent_requests_read_the_rows_once(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = workload.workload
    # the real function runs; only its calls are counted
    monkeypatch.setattr(workload, "workload", lambda session: (calls.append(1), original(session))[1])
    collector = metric_rows(home, fresh=60)
    for _ in range(20):
        collected(collector)
    assert len(calls) == 1


def test_an_unavailable_database_is_a_metric(home: Settings, tmp_path: Path) -> None:
    unavailable = load({"SPECULOOS_HOME": str(home.home), "DATABASE_URL": "postgresql://me:sesame@127.0.0.1:9/none"})
    figures = collected(metric_rows(unavailable))
    assert figures[("speculoos_database_up",)] == 0 and ("speculoos_disk_free_bytes",) in figures


def test_who_may_read_the_metrics(guarded: TestClient) -> None:
    """The route is behind the password like all others; the token is valid for this route only."""
    with guarded as client:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        refused = client.get("/metrics", follow_redirects=False)
        assert refused.status_code == 401 and "speculoos_jobs" not in refused.text
        assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
        assert client.get("/metrics", headers={"Authorization": f"Basic {TOKEN}"}).status_code == 401
        response = client.get("/metrics", headers=bearer)
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/plain")
        assert ("speculoos_jobs", "gpu", "QUEUED") in samples(response.text)
        for path in ("/", "/runs", "/api/runs/x", "/metrics/../jobs"):
            assert client.get(path, headers=bearer, follow_redirects=False).status_code != 200, path
        assert client.post("/metrics", headers=bearer).status_code in (401, 403, 405)
        assert client.get("/metrics", headers={**bearer, "Host": "evil.example"}).status_code == 403
        client.post("/login", data={"password": PASSWORD})
        assert client.get("/metrics").status_code == 200


def test_requests_are_measured_by_route_and_few_names(guarded: TestClient) -> None:
    guarded.cookies.clear()
    with guarded as client:
        for path in (
            "/healthz",
            "/api/runs/abc/events",
            "/runs",
            "/api/runs/abc",
            "/api/runs/def",
            "/nowhere/1",
            "/nowhere/2",
            "/gradio_api/x/y",
        ):
            client.get(path, follow_redirects=False)
        text = client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"}).text
    figures = samples(text)
    count = "speculoos_http_request_seconds_count"
    assert figures[count, "GET", "/healthz", "200"] >= 1
    assert figures[count, "GET", "/api/runs/{run_id}", "401"] >= 2
    assert figures[count, "GET", "/api/runs/{run_id}/events", "401"] >= 1 and figures[count, "GET", "/runs", "303"] >= 1
    assert figures[count, "GET", "other", "303"] >= 2
    assert figures[count, "GET", "/gradio_api/other", "401"] >= 1
    assert "abc" not in text and "nowhere" not in text


def test_open_event_streams_are_counted_until_they_end() -> None:
    web_metrics = metrics.WebMetrics.__new__(metrics.WebMetrics)
    from prometheus_client import CollectorRegistry, Gauge, Histogram

    registry = CollectorRegistry()
    web_metrics.streams = Gauge("streams", "x", ["route"], registry=registry)
    web_metrics.seconds = Histogram("seconds", "x", ["method", "route", "status"], registry=registry)

    async def stream(scope, receive, send) -> None:
        head = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        assert registry.get_sample_value("streams", {"route": "/x"}) == 1
        raise ConnectionError("the browser went away")

    async def request_stream() -> None:
        async def send(message) -> None:
            pass

        middleware = metrics.RequestTimes(stream, web_metrics, lambda scope: "/x")
        with pytest.raises(ConnectionError):
            await middleware({"type": "http", "method": "GET"}, None, send)

    run_async(request_stream())
    assert registry.get_sample_value("streams", {"route": "/x"}) == 0


def test_readiness_names_what_is_missing_without_addresses(guarded: TestClient) -> None:
    """The route needs no login, since load balancers have none."""
    with guarded as client:
        response = client.get("/readyz")
    assert response.status_code == 503
    assert set(response.json()["reasons"]) == {"broker", "worker-gpu", "worker-io"}
    assert "/tmp" not in response.text and "sock" not in response.text


def test_ready_when_all_parts_are(home: Settings) -> None:
    calls = []

    def check(settings: Settings, names: tuple[str, ...]) -> dict[str, HealthPart]:
        calls.append(names)
        return {name: HealthPart(True, "fine") for name in names}

    missing = metrics.readiness(home, check, seconds=60)
    assert missing() == [] and missing() == [] and len(calls) == 1
    assert set(calls[0]) == set(metrics.REASONS)


def test_the_documentation_names_every_metric_and_no_other(home: Settings) -> None:
    import re

    page = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    web_metrics = metrics.WebMetrics(home, monitor := StorageMonitor(home))
    monitor.measure().join(30)
    names = {family.name for family in web_metrics.registry.collect() if family.name.startswith("speculoos_")}
    names |= {f"{name}_total" for name in names if name in ("speculoos_job_attempts", "speculoos_attempts_lost")}
    names -= {"speculoos_job_attempts", "speculoos_attempts_lost"}
    table_rows = [line for line in page.splitlines() if line.startswith("| `speculoos_")]
    documented = {name for line in table_rows for name in re.findall(r"`(speculoos_\w+)`", line.split("|")[1])}
    assert documented == names
