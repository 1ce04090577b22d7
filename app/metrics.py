"""`/metrics` in the Prometheus format and `/readyz`, for monitoring.

Metrics of jobs come from rows, which are read at most once every few seconds; metrics of requests are counted in the
web process. Labels never contain ids, names or paths chosen by users.
"""

import asyncio
import hashlib
import hmac
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.routing import BaseRoute, Match

from ops.health import HealthPart, check
from ops.storage import Surveys, database_bytes
from speculoos.errors import SpeculoosError
from speculoos.resources import nearest_existing
from speculoos.settings import Settings
from tracking import workload
from tracking.db import reading

FRESH_SECONDS = 5.0
"""Cache time of metrics from rows."""
SURVEY_SECONDS = 600.0
"""Cache time of metrics that need the sizes of all files."""
REASONS = {
    "database": "the database does not respond, or has another schema version",
    "broker": "the broker does not respond",
    "worker-gpu": "no worker of the queue gpu is alive",
    "worker-io": "no worker of the queue io is alive",
}
"""Part that must respond before jobs can run → why it does not; public without a login, so without host names."""
T = TypeVar("T")
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
GRADIO = "/gradio_api/"
GRADIO_ROUTES = ("run", "upload_progress", "upload", "file", "app_id")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


def fresh(seconds: float, read: Callable[[], T]) -> Callable[[], T]:
    """A function that calls `read` at most once every `seconds`; concurrent callers wait for its result."""
    lock, cached = threading.Lock(), dict[str, Any](until=0.0)

    def latest() -> T:
        with lock:
            if time.monotonic() > cached["until"]:
                cached["value"] = read()
                cached["until"] = time.monotonic() + seconds
            return cached["value"]

    return latest


class WebMetrics:
    """All metrics of one home folder."""

    def __init__(self, settings: Settings, surveys: Surveys):
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "speculoos_http_request_seconds",
            "Seconds until the web server started to respond, by route and status.",
            ["method", "route", "status"],
            buckets=LATENCIES,
            registry=self.registry,
        )
        self.streams = Gauge(
            "speculoos_event_streams", "Open event streams, by route.", ["route"], registry=self.registry
        )
        self.registry.register(MetricRows(settings, surveys))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def answer(self, accept: str) -> Response:
        """The metrics in a format of the `accept` header."""
        encoder, kind = choose_encoder(accept)
        return Response(encoder(self.registry), headers={"Content-Type": kind, "Cache-Control": "no-store"})


class MetricRows:
    """A collector of metrics from the database and the disk, cached for a few seconds."""

    def __init__(self, settings: Settings, surveys: Surveys, seconds: float = FRESH_SECONDS):
        self.settings, self.surveys = settings, surveys
        self.collect = fresh(seconds, lambda: list(self._collect()))

    def _collect(self) -> Iterator[Metric]:
        try:
            with reading(self.settings) as session:
                load, size = workload.workload(session), database_bytes(session)
            yield gauge("speculoos_database_bytes", "Size of the database.", [], {(): size})
            yield from self._rows(load)
            up = 1
        except SpeculoosError:
            up = 0
        yield gauge("speculoos_database_up", "1 if the database responds.", [], {(): up})
        yield from self._disk()

    def _rows(self, load: workload.Workload) -> Iterator[Metric]:
        ages = {name: min(values) for name, values in load.heartbeats.items()}
        alive = {name: sum(age < 20 for age in values) for name, values in load.heartbeats.items()}
        held = {(device, by): float(holder == by) for device, holder in load.devices.items() for by in ("job", "run")}
        lost = "Attempts interrupted because their worker stopped reporting (lease_lost) or exited (worker_gone)."
        oldest = "Age of the oldest heartbeat of a running job."
        waiting = "Longest time a job has been ready to start."
        yield gauge("speculoos_jobs", "Listed jobs.", ["queue", "state"], load.jobs)
        yield gauge("speculoos_job_oldest_wait_seconds", waiting, ["queue"], load.oldest_wait)
        yield gauge("speculoos_job_heartbeat_age_seconds", oldest, ["queue"], load.silent_jobs)
        yield gauge(
            "speculoos_job_attempts", "Attempts of the listed jobs.", ["queue"], load.attempts, CounterMetricFamily
        )
        yield gauge("speculoos_attempts_lost", lost, ["reason"], load.counters, CounterMetricFamily)
        yield gauge("speculoos_runs", "Turns of chats and columns of comparisons.", ["state"], load.runs)
        yield gauge("speculoos_heartbeat_age_seconds", "Seconds since a process's last heartbeat.", ["process"], ages)
        yield gauge("speculoos_processes_alive", "Processes with a heartbeat within 20 s.", ["process"], alive)
        yield gauge("speculoos_device_held", "1 while a job or a measurement holds the device.", ["device", "by"], held)

    def _disk(self) -> Iterator[Metric]:
        disk = shutil.disk_usage(nearest_existing(self.settings.home))
        yield gauge("speculoos_disk_free_bytes", "Free bytes on the disk of the home folder.", [], {(): disk.free})
        yield gauge("speculoos_disk_total_bytes", "Size of that disk.", [], {(): disk.total})
        if survey := self.surveys.get(SURVEY_SECONDS):
            used = "Bytes used by each part of the home folder."
            yield gauge("speculoos_storage_bytes", used, ["part"], survey.parts)


def gauge(
    name: str, description: str, labels: list[str], values: Mapping[Any, float], kind: type = GaugeMetricFamily
) -> Metric:
    """A metric from `values` by label value, or by a tuple of several."""
    family = kind(name, description, labels=labels)
    for key, value in values.items():
        family.add_metric([key] if isinstance(key, str) else [*map(str, key)], value)
    return family


def readiness(
    settings: Settings, look: Callable[..., dict[str, HealthPart]] = check, seconds: float = 2.0
) -> Callable[[], list[str]]:
    """A function that returns the names of the parts that are not ready; it runs the health check every `seconds`."""
    return fresh(seconds, lambda: [name for name, part in look(settings, tuple(REASONS)).items() if not part.ok])


def add_routes(app: FastAPI, settings: Settings, surveys: Surveys) -> WebMetrics:
    """GET /metrics and GET /readyz."""
    metrics, missing_parts = WebMetrics(settings, surveys), readiness(settings)

    @app.get("/metrics")
    def show(request: Request) -> Response:
        return metrics.answer(request.headers.get("accept", ""))

    @app.get("/readyz")
    def ready() -> JSONResponse:
        missing = missing_parts()
        answer = {"status": "not ready" if missing else "ready", "reasons": {name: REASONS[name] for name in missing}}
        return JSONResponse(answer, status_code=503 if missing else 200)

    return metrics


class RequestTimes:
    """ASGI middleware: measures the time to the start of each response, and counts open event streams."""

    def __init__(self, app: Any, metrics: WebMetrics, route_name: Callable[[dict[str, Any]], str]):
        self.app, self.metrics, self.route_name = app, metrics, route_name

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route, started = self.route_name(scope), time.monotonic()
        stream = None

        async def timed(message: dict[str, Any]) -> None:
            nonlocal stream
            if message["type"] == "http.response.start":
                labels = (scope["method"] if scope["method"] in METHODS else "other", route, str(message["status"]))
                self.metrics.seconds.labels(*labels).observe(time.monotonic() - started)
                if _is_stream(message):
                    stream = self.metrics.streams.labels(route)
                    stream.inc()
            await send(message)

        try:
            await self.app(scope, receive, timed)
        finally:
            if stream:
                stream.dec()


def route_names(pages: Collection[str], routes: Iterable[BaseRoute]) -> Callable[[dict[str, Any]], str]:
    """A function that returns a request's route template, so that the number of labels is bounded."""
    own = [route for route in routes if isinstance(route, APIRoute)]

    def name(scope: dict[str, Any]) -> str:
        path = scope["path"]
        if path in pages:
            return path
        if path.startswith("/ui/"):
            return "/ui"
        if path.startswith(GRADIO):
            known = path.removeprefix(GRADIO)
            return GRADIO + next((route for route in GRADIO_ROUTES if known.startswith(route)), "other")
        return next((route.path for route in own if route.matches(scope)[0] != Match.NONE), "other")

    return name


class Scraper:
    """ASGI middleware before the login: requests with the metrics token may read `/metrics`, and nothing else."""

    def __init__(self, app: Any, metrics: WebMetrics, token: str):
        self.app, self.metrics = app, metrics
        self._token = hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        is_scrape = scope["type"] == "http" and scope["path"] == "/metrics" and scope["method"] == "GET"
        headers = Request(scope).headers if is_scrape else {}
        if "authorization" not in headers:
            await self.app(scope, receive, send)
        elif self._is_token(headers["authorization"]):
            answer = await asyncio.to_thread(self.metrics.answer, headers.get("accept", ""))
            await answer(scope, receive, send)
        else:
            await Response("Wrong metrics token.\n", status_code=401, media_type="text/plain")(scope, receive, send)

    def _is_token(self, header: str) -> bool:
        kind, _, token = header.partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        return kind.lower() == "bearer" and hmac.compare_digest(digest, self._token)


def _is_stream(message: dict[str, Any]) -> bool:
    return any(k.lower() == b"content-type" and v.startswith(b"text/event-stream") for k, v in message["headers"])
