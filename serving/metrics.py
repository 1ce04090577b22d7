"""Prometheus metrics of the server (GET /metrics), and the middleware that times its requests."""

import time
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import STOPPING, ApiError

disable_created_metrics()  # they would add an unused series per metric
PREFIX = "speculoos_inference"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
OTHER = "other"  # label of all unknown paths, whose number is unbounded
CLOSED = "closed"  # status of a request whose client disconnected before the response


class InferenceMetrics:
    """Metrics of one server; safe to update from any thread."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        options: dict[str, Any] = {"namespace": PREFIX, "registry": self.registry}
        counter, self._gauge = partial(Counter, **options), partial(Gauge, **options)
        seconds = partial(Histogram, buckets=SECONDS, **options)
        self.requests = seconds("request_seconds", "Time to the last byte of a response", ("route", "status"))
        self.queue_wait = seconds("queue_wait_seconds", "Time in the device's queue")
        self.prompt = seconds("prompt_seconds", "Time of chat template and tokenizer in the child process")
        self.prompts_failed = counter("prompts_failed", "Failed or stopped chat templates and tokenizers")
        self.panics = counter("panics_survived", "Panics and other BaseExceptions after which the thread went on")
        label = ("drafter",)
        self._tokens = counter("tokens_generated", "Generated tokens", label)
        self._seconds = counter("generation_seconds", "Time spent on tokens_generated", label)
        self._verifications = counter("verifications", "Verification steps counted for tau", label)
        self._verified = counter("verified_tokens", "Tokens of these steps; over verifications: tau", label)
        self._speed = self._gauge("tokens_per_second", "Speed of the last response, prefill included", label)
        self._tau = self._gauge("mean_accepted_length", "tau of the last response", label)

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """Add a gauge whose value is `read()` at each scrape."""
        self._gauge(name, help_text).set_function(read)

    def generated(self, summary: dict[str, Any]) -> None:
        """Count one response by its summary (decoding.stats)."""
        drafter = summary["drafter"]
        self._tokens.labels(drafter).inc(summary["tokens"])
        self._seconds.labels(drafter).inc(summary["ms_total"] / 1000)
        if speed := summary["tokens_per_second"]:
            self._speed.labels(drafter).set(speed)
        if tau := summary["mean_accepted_length"]:
            self._tau.labels(drafter).set(tau)
            self._verifications.labels(drafter).inc(summary["verifications"])
            self._verified.labels(drafter).inc(tau * summary["verifications"])

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class RequestTimer:
    """ASGI middleware. `observe(route, status)` returns a function that takes the seconds to the last byte."""

    def __init__(self, app: ASGIApp, observe: Callable[[str, str], Callable[[float], None]]):
        self.app, self._observe = app, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), CLOSED

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except CancelledError:  # uvicorn stops; it would send a 500 and log a traceback for every request
            if status == CLOSED:
                await ApiError(503, STOPPING, "unavailable").response()(scope, receive, send_and_note)
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            self._observe(route, status)(time.monotonic() - start)
