"""What the server tells Prometheus: GET /metrics. Knows the library's types, not HTTP and not models."""

from collections.abc import Callable
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

disable_created_metrics()  # one more series for each, that nobody reads
PREFIX = "speculoos_inference"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class InferenceMetrics:
    """The figures of one server. Any thread may add to them."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self.requests = self._histogram("request_seconds", "Answers to requests, to their last byte", "route", "status")
        self.queue_wait = self._histogram("queue_wait_seconds", "Waiting for the device")
        self.prompt = self._histogram("prompt_seconds", "Chat template and tokenizer, in the child process")
        self.prompts_failed = self._counter("prompts_failed", "Chat templates and tokenizers that failed or were ended")
        self.panics = self._counter("panics_survived", "Panics and the like that a thread of the server lived through")
        self._tokens = self._counter("tokens_generated", "Tokens of answers", "drafter")
        self._seconds = self._counter("generation_seconds", "Time in which tokens_generated were made", "drafter")
        self._verifications = self._counter("verifications", "Verifications that count for tau", "drafter")
        self._verified = self._counter("verified_tokens", "Tokens they emitted; over verifications: tau", "drafter")
        self._speed = self._gauge("tokens_per_second", "Of the last answer, prefill included", "drafter")
        self._tau = self._gauge("mean_accepted_length", "tau of the last answer", "drafter")

    def watch(self, name: str, what: str, read: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        self._gauge(name, what).set_function(read)

    def generated(self, summary: dict[str, Any]) -> None:
        """Add an answer, by its summary (decoding.stats)."""
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
        """All of it in Prometheus' text form."""
        return generate_latest(self.registry)

    def _histogram(self, name: str, what: str, *labels: str) -> Histogram:
        return Histogram(f"{PREFIX}_{name}", what, labels, buckets=SECONDS, registry=self.registry)

    def _counter(self, name: str, what: str, *labels: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", what, labels, registry=self.registry)

    def _gauge(self, name: str, what: str, *labels: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", what, labels, registry=self.registry)
