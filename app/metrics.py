"""`/metrics` in the Prometheus format and `/readyz`, for monitoring.

Metrics of jobs come from rows (ops/metrics.py); metrics of requests are counted in the web process. Labels never
contain ids, names or paths chosen by users.
"""

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CollectorRegistry, Gauge, GCCollector, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.routing import BaseRoute, Match

from ops.health import HealthPart, check
from ops.metrics import MetricRows, fresh
from ops.storage import StorageMonitor
from speculoos.settings import Settings

REASONS = {
    "database": "the database does not respond, or has another schema version",
    "broker": "the broker does not respond",
    "worker-gpu": "no worker of the queue gpu is alive",
    "worker-io": "no worker of the queue io is alive",
}
"""Part that must respond before jobs can run → why it does not; public without a login, so without host names."""
LATENCIES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
GRADIO = "/gradio_api/"
GRADIO_ROUTES = ("run", "upload_progress", "upload", "file", "app_id")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS")


class WebMetrics:
    """All metrics of one home folder."""

    def __init__(self, settings: Settings, monitor: StorageMonitor):
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
        self.registry.register(MetricRows(settings, monitor))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)

    def answer(self, accept: str) -> Response:
        """The metrics in a format of the `accept` header."""
        encoder, kind = choose_encoder(accept)
        return Response(encoder(self.registry), headers={"Content-Type": kind, "Cache-Control": "no-store"})


def readiness(
    settings: Settings, look: Callable[..., dict[str, HealthPart]] = check, seconds: float = 2.0
) -> Callable[[], list[str]]:
    """A function that returns the names of the parts that are not ready; it runs the health check every `seconds`."""
    return fresh(seconds, lambda: [name for name, part in look(settings, tuple(REASONS)).items() if not part.ok])


def add_routes(app: FastAPI, settings: Settings, monitor: StorageMonitor) -> WebMetrics:
    """GET /metrics and GET /readyz."""
    metrics, missing_parts = WebMetrics(settings, monitor), readiness(settings)

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
    api_routes = [route for route in routes if isinstance(route, APIRoute)]

    def name(scope: dict[str, Any]) -> str:
        path = scope["path"]
        if path in pages:
            return path
        if path.startswith("/ui/"):
            return "/ui"
        if path.startswith(GRADIO):
            gradio_path = path.removeprefix(GRADIO)
            return GRADIO + next((route for route in GRADIO_ROUTES if gradio_path.startswith(route)), "other")
        return next((route.path for route in api_routes if route.matches(scope)[0] != Match.NONE), "other")

    return name


def _is_stream(message: dict[str, Any]) -> bool:
    return any(k.lower() == b"content-type" and v.startswith(b"text/event-stream") for k, v in message["headers"])
