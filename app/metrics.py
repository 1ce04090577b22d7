"""`/metrics` in Prometheus' form and `/readyz`, for whoever watches the workbench with tools of their own.

Figures of jobs come from rows, read at most once in some seconds however often someone asks; those of requests are
counted here, in the web process. No label holds an id, a name or a path that people choose.
"""

import asyncio
import hashlib
import hmac
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.routing import Match, Mount

from ops.health import HealthPart, check
from ops.storage import Surveys, database_bytes
from speculoos.errors import SpeculoosError
from speculoos.room import existing
from speculoos.settings import Settings
from tracking import workload
from tracking.db import reading

FRESH_SECONDS = 5.0
"""How long what was read from rows is shown again."""
SURVEY_SECONDS = 600.0
"""The same for what needs a walk through all files."""
READY = ("database", "broker", "worker-gpu", "worker-io")
"""What must answer before work can be done."""
REASONS = {
    "database": "the database does not answer, or is not of this version",
    "broker": "the broker does not answer",
    "worker-gpu": "no worker of the queue gpu is alive",
    "worker-io": "no worker of the queue io is alive",
}
"""Said without a login, so without addresses."""
WAITS = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600)
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
GRADIO = "/gradio_api"
GRADIO_ROUTES = ("queue/join", "queue/data", "run", "upload_progress", "upload", "heartbeat", "file", "info")


class WebMetrics:
    """Everything `/metrics` shows of one home."""

    def __init__(self, settings: Settings, surveys: Surveys):
        self.registry = CollectorRegistry()
        self.seconds = Histogram(
            "speculoos_http_request_seconds",
            "Seconds until the pages' server began to answer, by route and status.",
            ["method", "route", "status"],
            buckets=LATENCIES,
            registry=self.registry,
        )
        self.streams = Gauge(
            "speculoos_event_streams", "Event streams that are open now, by route.", ["route"], registry=self.registry
        )
        self.registry.register(MetricRows(settings, surveys))
        for own in (ProcessCollector, PlatformCollector, GCCollector):
            own(registry=self.registry)

    def answer(self, accept: str) -> Response:
        """All of it, in the form the asker understands."""
        encoder, kind = choose_encoder(accept)
        return Response(encoder(self.registry), headers={"Content-Type": kind, "Cache-Control": "no-store"})


class MetricRows:
    """A collector of figures from the database and the disk. Keeps the last ones for a few seconds."""

    def __init__(self, settings: Settings, surveys: Surveys, fresh: float = FRESH_SECONDS):
        self.settings, self.surveys, self.fresh = settings, surveys, fresh
        self._lock = threading.Lock()
        self._until, self._last = 0.0, list[Metric]()
        self._waits = Waits()

    def collect(self) -> list[Metric]:
        """The metrics, from rows at most `fresh` seconds old; one caller reads, the others wait for it."""
        with self._lock:
            if time.monotonic() > self._until:
                self._last = list(self._collect())
                self._until = time.monotonic() + self.fresh
            return self._last

    def _collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("speculoos_database_up", "1 when the database answers.")
        try:
            with reading(self.settings) as session:
                load, size = workload.workload(session), database_bytes(session)
                self._waits.read(session)
        except SpeculoosError:
            up.add_metric([], 0)
            yield from (up, *self._disk())
            return
        up.add_metric([], 1)
        yield from (up, gauge("speculoos_database_bytes", "Size of the database.", [], {(): size}))
        yield from self._rows(load)
        yield from self._waits.histogram.collect()
        yield from self._disk()

    def _rows(self, load: workload.Workload) -> Iterator[Metric]:
        yield gauge("speculoos_jobs", "Jobs that are listed.", ["queue", "state"], load.jobs)
        yield gauge(
            "speculoos_job_oldest_wait_seconds",
            "How long the job that waits longest could have begun already.",
            ["queue"],
            by_one(load.oldest_wait),
        )
        yield gauge(
            "speculoos_job_heartbeat_age_seconds",
            "Silence of the running job that was silent longest.",
            ["queue"],
            by_one(load.silent_jobs),
        )
        attempts = by_one(load.attempts)
        yield counter("speculoos_job_attempts", "Attempts of the jobs that are listed.", ["queue"], attempts)
        yield counter(
            "speculoos_attempts_lost",
            "Attempts interrupted because their worker fell silent (lease_lost) or was gone (worker_gone).",
            ["reason"],
            by_one(load.counters),
        )
        yield gauge("speculoos_runs", "Turns of chats and columns of comparisons.", ["state"], by_one(load.runs))
        ages = {name: min(each) for name, each in load.heartbeats.items()}
        yield gauge("speculoos_heartbeat_age_seconds", "Since a process was heard of.", ["process"], by_one(ages))
        alive = {name: sum(age < 20 for age in each) for name, each in load.heartbeats.items()}
        yield gauge("speculoos_processes_alive", "Processes heard of within 20 s.", ["process"], by_one(alive))
        held = {(device, by): float(holder == by) for device, holder in load.devices.items() for by in ("job", "run")}
        yield gauge("speculoos_device_held", "1 while a job or a measurement holds the device.", ["device", "by"], held)

    def _disk(self) -> Iterator[Metric]:
        disk = shutil.disk_usage(existing(self.settings.home))
        yield gauge("speculoos_disk_free_bytes", "Free where the home is.", [], {(): disk.free})
        yield gauge("speculoos_disk_total_bytes", "Size of that disk.", [], {(): disk.total})
        if survey := self.surveys.get(SURVEY_SECONDS):
            parts = by_one(survey.parts)
            yield gauge("speculoos_storage_bytes", "What the parts of the home take.", ["part"], parts)


class Waits:
    """A histogram of how long jobs waited for their first start, fed from rows: each job once."""

    def __init__(self) -> None:
        self.histogram = Histogram(
            "speculoos_job_wait_seconds",
            "Seconds from a job's making to its first start, of jobs started since this process began.",
            ["queue"],
            buckets=WAITS,
            registry=None,
        )
        for queue in workload.QUEUES:
            self.histogram.labels(queue)
        self._since = datetime.now(UTC) + workload.LATE
        self._seen: set[str] = set()

    def read(self, session: Any) -> None:
        """Count the jobs that were started since the last time."""
        at = datetime.now(UTC)
        starts = workload.started_since(session, self._since)
        for job_id, queue, seconds in starts:
            if job_id not in self._seen:
                self.histogram.labels(queue).observe(seconds)
        self._seen = {job_id for job_id, _, _ in starts}
        self._since = max(self._since, at)


def _filled(kind: type, name: str, words: str, labels: list[str], values: dict[tuple[str, ...], float]) -> Any:
    family = kind(name, words, labels=labels)
    for of, value in values.items():
        family.add_metric([str(label) for label in of], value)
    return family


gauge, counter = partial(_filled, GaugeMetricFamily), partial(_filled, CounterMetricFamily)


def by_one(values: dict[str, float] | dict[str, int]) -> dict[tuple[str, ...], float]:
    """Values by one label."""
    return {(key,): value for key, value in values.items()}


class Readiness:
    """Whether work can be done, asked for at most once in a while whoever asks."""

    def __init__(self, settings: Settings, look: Callable[..., dict[str, HealthPart]] = check, fresh: float = 2.0):
        self.settings, self._look, self.fresh = settings, look, fresh
        self._lock = threading.Lock()
        self._until, self._missing = 0.0, list[str]()

    def missing(self) -> list[str]:
        """Names of the parts that are not ready."""
        with self._lock:
            if time.monotonic() > self._until:
                parts = self._look(self.settings, READY)
                self._missing = [name for name, part in parts.items() if not part.ok]
                self._until = time.monotonic() + self.fresh
            return list(self._missing)


def add_routes(app: FastAPI, settings: Settings, surveys: Surveys) -> WebMetrics:
    """GET /metrics and GET /readyz."""
    metrics, readiness = WebMetrics(settings, surveys), Readiness(settings)

    @app.get("/metrics")
    def show(request: Request) -> Response:
        return metrics.answer(request.headers.get("accept", ""))

    @app.get("/readyz")
    def ready() -> JSONResponse:
        missing = readiness.missing()
        answer = {"status": "not ready" if missing else "ready", "reasons": {name: REASONS[name] for name in missing}}
        return JSONResponse(answer, status_code=503 if missing else 200)

    return metrics


class RequestTimes:
    """ASGI middleware: times every request to the beginning of its answer, and counts open event streams."""

    def __init__(self, app: Any, metrics: WebMetrics, routes: Callable[[dict[str, Any]], str]):
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route, begun = self.routes(scope), time.monotonic()
        streams = []

        async def timed(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                labels = (scope["method"] if scope["method"] in METHODS else "other", route, str(message["status"]))
                self.metrics.seconds.labels(*labels).observe(time.monotonic() - begun)
                if _is_stream(message):
                    streams.append(self.metrics.streams.labels(route))
                    streams[-1].inc()
            await send(message)

        try:
            await self.app(scope, receive, timed)
        finally:
            for stream in streams:
                stream.dec()


METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


def route_names(app: FastAPI, pages: dict[str, str]) -> Callable[[dict[str, Any]], str]:
    """A function that names a request's route by its template: few names, whatever people ask for."""
    own = list(_own_routes(app.routes))

    def name(scope: dict[str, Any]) -> str:
        path = scope["path"]
        if path in pages:
            return path
        if path.startswith("/ui/"):
            return "/ui"
        if path.startswith(GRADIO + "/"):
            rest = path.removeprefix(GRADIO + "/")
            return f"{GRADIO}/{next((known for known in GRADIO_ROUTES if rest.startswith(known)), 'other')}"
        matched = (route.path for route in own if route.matches(scope)[0] != Match.NONE)
        return next(matched, "other")

    return name


def _own_routes(routes: Iterable[Any]) -> Iterator[Any]:
    """Ours, those of included routers too; mounted applications keep theirs to themselves."""
    for route in routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from _own_routes(included.routes)
        elif not isinstance(route, Mount) and getattr(route, "path", ""):
            yield route


class Scraper:
    """ASGI middleware in front of the login: who brings the metrics token may read `/metrics`, and nothing else."""

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
            refusal = "That is not the token for metrics.\n"
            await Response(refusal, status_code=401, media_type="text/plain")(scope, receive, send)

    def _is_token(self, given: str) -> bool:
        kind, _, token = given.partition(" ")
        digest = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        return kind.lower() == "bearer" and hmac.compare_digest(digest, self._token)


def _is_stream(message: dict[str, Any]) -> bool:
    return any(k.lower() == b"content-type" and v.startswith(b"text/event-stream") for k, v in message["headers"])
