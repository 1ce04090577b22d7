"""A load-balanced pool of OpenAI-compatible servers: each request goes to the least loaded available server.

A failing server is paused with exponential backoff and retried with a single request (a half-open circuit breaker). Its
failed requests are sent to other servers, so each request gets exactly one answer. A pool of a single server relies on
the client's own retries, which honour `Retry-After`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import openai

from corpus.replies import TOKEN_ID_REQUESTS, Reply, parse_reply
from speculoos.errors import BadInput, Cancelled, Unavailable
from speculoos.redaction import cut_to_words
from speculoos.settings import Endpoint

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds a server is paused after the first failure, doubled after each further one, and the maximum."""
PATIENCE = 120.0
"""Seconds without any response from any server of a pool, after which requests fail."""
POLL_SECONDS = 0.25
RETRYABLE_ERRORS = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
"""Temporary errors of a server; the request itself may be valid."""


class Server:
    """One base URL with its running requests, consecutive failures and pause."""

    def __init__(self, endpoint: Endpoint, url: str, label: str, model: str, retries: int):
        self.endpoint, self.label, self.model = endpoint, label, model
        self.active_requests = self.failures = self.tokens = 0
        self.paused_until = self.next_at = 0.0
        self.token_id_fields: dict[str, Any] | None = None
        """Request fields that make it return token ids; None before the probe, {} if it returns none."""
        self.probe_lock = threading.Lock()
        key = endpoint.key or "none"
        self.client = openai.OpenAI(base_url=url, api_key=key, timeout=endpoint.timeout, max_retries=retries)

    def can_accept(self, now: float) -> bool:
        """Whether it accepts another request; after a failure, only one at a time."""
        limit = 1 if self.failures else self.endpoint.concurrency
        return self.active_requests < limit and now >= max(self.paused_until, self.next_at)

    def started(self, now: float) -> None:
        """Count a new request and apply the rate limit."""
        self.active_requests += 1
        if self.endpoint.requests_per_minute:
            self.next_at = max(now, self.next_at) + 60 / self.endpoint.requests_per_minute


class EndpointPool:
    """The servers of some endpoints. `create_completion` may be called from many threads."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        model: str = "",
        log: Callable[[str, str], None] = lambda message, level: None,
        clock: Callable[[], float] = time.monotonic,
        probe: dict[str, Any] | None = None,
    ):
        """`model` replaces the endpoints' own; `log(message, level)` reports failing and recovered servers. `probe`: a
        small request that is first sent to each server to find out how it returns token ids; None if they are not
        needed. Raises BadInput when an endpoint has no model."""
        urls = [(endpoint, url) for endpoint in endpoints for url in endpoint.urls]
        self.servers = [self._server(*pair, model, len(urls)) for pair in urls]
        self._log, self._clock, self._probe = log, clock, probe
        self._answered_at = clock()
        self._changed = threading.Condition()

    @property
    def max_retries(self) -> int:
        """Maximum retries of one request, besides the client's own, so that an unanswerable request ends."""
        return sum(server.endpoint.retries + 1 for server in self.servers) if len(self.servers) > 1 else 0

    @property
    def slots(self) -> int:
        return sum(server.endpoint.concurrency for server in self.servers)

    @property
    def tokens(self) -> dict[str, int]:
        """{server: generated tokens}."""
        return {server.label: server.tokens for server in self.servers}

    def config(self) -> dict[str, str]:
        """Names of the endpoints and models, for `dataset.json`."""
        names, models = [server.endpoint.name for server in self.servers], [server.model for server in self.servers]
        return {"endpoint": ",".join(dict.fromkeys(names)), "model": ",".join(dict.fromkeys(models))}

    def create_completion(self, stopped: threading.Event, **request: Any) -> tuple[Reply, int]:
        """(reply, retries) to a chat completion, or with a `prompt` to a plain completion. Raises the client's error
        when the request is invalid or all retries failed, Unavailable when no server responds, Cancelled once `stopped`
        is set."""
        retries = 0
        while True:
            server = self._acquire(stopped)
            try:
                reply, client_retries = _send(server, self._token_id_fields(server), request)
            except RETRYABLE_ERRORS as error:
                self._release(server, error)
                if retries >= self.max_retries:
                    raise
                retries += 1
            except BaseException:
                self._release(server)
                raise
            else:
                self._release(server, tokens=reply.tokens)
                return reply, retries + client_retries

    def _server(self, endpoint: Endpoint, url: str, model: str, count: int) -> Server:
        if not (model := model or endpoint.model):
            raise BadInput(f"Endpoint {endpoint.name!r} has no model name; set one here or in settings.toml.")
        number = endpoint.urls.index(url) + 1
        label = f"{endpoint.name} {number}" if len(endpoint.urls) > 1 else endpoint.name
        return Server(endpoint, url, label, model, endpoint.retries if count == 1 else 0)

    def _acquire(self, stopped: threading.Event) -> Server:
        with self._changed:
            while not stopped.is_set():
                now = self._clock()
                if available := [server for server in self.servers if server.can_accept(now)]:
                    server = min(available, key=lambda server: server.active_requests / server.endpoint.concurrency)
                    server.started(now)
                    return server
                self._check_patience(now)
                self._changed.wait(self._wait_time(now))
        raise Cancelled("Stopped at your request.")

    def _wait_time(self, now: float) -> float:
        """Seconds until a server's rate limit allows another request, at most POLL_SECONDS."""
        delays = [server.next_at - now for server in self.servers if server.next_at > now]
        return max(0.001, min([POLL_SECONDS, *delays]))

    def _token_id_fields(self, server: Server) -> dict[str, Any]:
        """Request fields that make a server return token ids, found with the probe on first use."""
        if self._probe is None:
            return {}
        with server.probe_lock:
            if server.token_id_fields is None:
                server.token_id_fields = _probe_token_id_fields(server, self._probe)
                if not server.token_id_fields:
                    self._log(f"{server.label} sends no token ids; its answers are tokenized for training.", "warning")
            return server.token_id_fields

    def _check_patience(self, now: float) -> None:
        if all(server.failures for server in self.servers) and now - self._answered_at > PATIENCE:
            names = ", ".join(server.label for server in self.servers)
            raise Unavailable(
                f"None of the endpoints has answered for {PATIENCE:.0f} s: {names}.",
                "Finished rows are kept; retry when they answer again.",
            )

    def _release(self, server: Server, error: Exception | None = None, tokens: int = 0) -> None:
        """Record the end of a request; without an `error` the server is healthy."""
        with self._changed:
            server.active_requests -= 1
            server.tokens += tokens
            notice = self._failed(server, error) if error and len(self.servers) > 1 else self._succeeded(server)
            self._changed.notify()
        if notice:
            self._log(*notice)

    def _failed(self, server: Server, error: Exception) -> tuple[str, str] | None:
        """Pause the server, unless it is paused already (concurrent requests fail together)."""
        now = self._clock()
        if now < server.paused_until:
            return None
        pause = max(_retry_after(error), min(FIRST_PAUSE * 2**server.failures, LONGEST_PAUSE))
        server.failures, server.paused_until = server.failures + 1, now + pause
        if server.failures > 1:
            return None
        return f"{server.label} does not respond ({short_error(error)}); the others get its requests.", "warning"

    def _succeeded(self, server: Server) -> tuple[str, str] | None:
        self._answered_at = self._clock()
        recovered, server.failures, server.paused_until = server.failures > 0, 0, 0.0
        return (f"{server.label} responds again.", "info") if recovered else None


def _send(server: Server, token_id_fields: dict[str, Any], request: dict[str, Any]) -> tuple[Reply, int]:
    kind = server.client.completions if "prompt" in request else server.client.chat.completions
    extra = {**token_id_fields, **request.get("extra_body", {})}
    raw = kind.with_raw_response.create(model=server.model, **{**request, "extra_body": extra or None})
    try:
        body = raw.http_response.json()
    except (ValueError, RecursionError):
        raise ValueError("an answer that is not valid JSON") from None
    return replace(parse_reply(body), body=body, seconds=raw.elapsed.total_seconds()), raw.retries_taken


def _probe_token_id_fields(server: Server, probe: dict[str, Any]) -> dict[str, Any]:
    """The first of TOKEN_ID_REQUESTS with which a server returns ids, {} for none; unknown fields may be rejected."""
    for token_id_fields in TOKEN_ID_REQUESTS:
        with suppress(openai.BadRequestError, openai.UnprocessableEntityError):
            if _send(server, token_id_fields, probe)[0].ids:
                return token_id_fields
    return {}


def short_error(error: Exception) -> str:
    """One short line: the status and the endpoint's error message."""
    if isinstance(error, openai.APITimeoutError):
        return "no answer within the time limit"
    if isinstance(error, openai.APIConnectionError):
        return "no connection"
    body = getattr(error, "body", None)
    message = body.get("message") if isinstance(body, dict) else None
    text = cut_to_words(str(message or error).splitlines()[0], 200) if str(message or error) else type(error).__name__
    status = getattr(error, "status_code", None)
    return f"{status} {text}" if status and not text.startswith(str(status)) else text


def _retry_after(error: Exception) -> float:
    """Seconds of the Retry-After header, at most PATIENCE; 0 without one."""
    response = getattr(error, "response", None)
    text = response.headers.get("retry-after", "") if response is not None else ""
    return min(float(text), PATIENCE) if text.replace(".", "", 1).isdigit() else 0.0
