"""Clients of servers of hidden states: what all have in common, and the client of the project's own server."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import httpx
from torch import Tensor

from speculoos.bounded import NO_COMPRESSION, read_limited
from speculoos.errors import BadInput, Unavailable
from speculoos.redaction import cut_to_words
from speculoos.settings import HiddenStatesServer
from training.hidden_states.wire import MAX_VALUE_BYTES, PROTOCOL, HiddenStates, StatesRequest, check_shapes, from_bytes

CONNECT_SECONDS = 10.0
OVERHEAD_BYTES = 2**20  # limit for the part of a response body that is not hidden states
RETRYABLE_STATUSES = (408, 425, 429, 502, 503, 504)
"""HTTP statuses of temporary failures; the same request may succeed later."""


class TemporarilyUnavailable(Unavailable):
    """The server is temporarily unavailable; retry."""


class StatesClient:
    """Source of hidden states. Thread-safe; `workers` is the useful number of concurrent calls."""

    workers = 2

    def check(self, rows: Sequence[Tensor]) -> str:
        """Verify that the server runs the base model of this training; returns a line for the log. `rows` may be sent
        as a test. Raises TemporarilyUnavailable, or BadInput for another base model."""
        return ""

    def states(self, request: StatesRequest) -> HiddenStates:
        """Raises TemporarilyUnavailable, or BadInput or Unavailable when a retry would not help."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the connections, if there are any; no further calls."""


class DaemonPool:
    """`count` threads that run calls in FIFO order. Unlike ThreadPoolExecutor, it does not keep the process alive."""

    def __init__(self, count: int):
        self._calls: SimpleQueue[tuple[Future, Callable[..., Any], tuple[Any, ...]] | None] = SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._work, daemon=True).start()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Future:
        future: Future = Future()
        self._calls.put((future, function, arguments))
        return future

    def close(self) -> None:
        """End the threads after the calls queued so far."""
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function, arguments = call
            try:
                future.set_result(function(*arguments))
            except BaseException as error:  # includes panics of Rust code: a waiting caller must not hang
                future.set_exception(error)


class StatesConnection:
    """HTTP to one server over persistent connections."""

    def __init__(self, server: HiddenStatesServer):
        self._title = f"The server of hidden states “{server.name}”"
        self._key_hint = f"Set the variable named by key_env of [hidden_states.{server.name}] in settings.toml."
        headers = NO_COMPRESSION | ({"Authorization": f"Bearer {server.key}"} if server.key else {})
        timeout = httpx.Timeout(server.timeout, connect=CONNECT_SECONDS)
        self._client = httpx.Client(base_url=server.root, headers=headers, timeout=timeout)
        self.close = self._client.close

    def json(self, verb: str, path: str, max_bytes: int = 0, **body: Any) -> Any:
        try:
            return self.request(verb, path, max_bytes, **body).json()
        except ValueError:
            raise Unavailable(f"{self._title} did not send JSON; check its url.") from None

    def request(self, verb: str, path: str, max_bytes: int = 0, **body: Any) -> httpx.Response:
        """`max_bytes`: limit for the hidden states in the response body."""
        max_bytes += OVERHEAD_BYTES
        try:
            with self._client.stream(verb, path, **body) as streamed:
                content = read_limited(streamed, max_bytes)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            raise TemporarilyUnavailable("it cannot be reached") from None
        except httpx.TimeoutException:
            raise TemporarilyUnavailable("it takes too long") from None
        except httpx.TransportError:
            raise TemporarilyUnavailable("the connection broke") from None
        except httpx.HTTPError as error:
            raise Unavailable(f"{self._title}: invalid response ({error}).") from None
        if content is None:
            raise BadInput(
                f"{self._title} answers {path} with more than the {max_bytes / 1e6:,.1f} MB that this request allows; "
                "the rest was not read.",
                "Serve the base model of this training, with a server of the kind set in settings.toml.",
            )
        response = httpx.Response(streamed.status_code, content=content)
        self._raise_for_status(response)
        return response

    def _raise_for_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status < 400:
            return
        message = f"{status} {response.reason_phrase}"
        with suppress(ValueError):
            body = response.json()
            error = body.get("error", body) if isinstance(body, dict) else {}  # servers use different shapes
            reported = error.get("message") if isinstance(error, dict) else error
            message = cut_to_words(str(reported or message), 500)
        if status in RETRYABLE_STATUSES:
            raise TemporarilyUnavailable(message)
        if status in (401, 403):
            raise BadInput(f"{self._title} refuses us ({status}): {message}", self._key_hint)
        raise (BadInput if status < 500 else Unavailable)(f"{self._title} says: {message}")


class ReferenceClient(StatesClient):
    """Client of the project's own server: one request per batch, with the weights' sha256, so that another base model
    is detected at once. While one batch is computed, another is transferred."""

    def __init__(self, server: HiddenStatesServer, base: Any, sha256: str):
        self._connection, self._base, self._sha256 = StatesConnection(server), base, sha256
        self._name, self.close = server.name, self._connection.close

    def check(self, rows: Sequence[Tensor]) -> str:
        facts = self._connection.json("GET", "/v1/base")
        if not isinstance(facts, dict) or facts.get("protocol") != PROTOCOL:
            raise BadInput(f"“{self._name}” is no server of hidden states of this version; check its url.")
        if (served := str(facts.get("base_sha256"))) != self._sha256:
            raise BadInput(
                f"The server of hidden states “{self._name}” runs other weights ({served[:12]}…) than this training's "
                f"base ({self._sha256[:12]}…).",
                "Serve the base model of this training, or choose another server.",
            )
        return f"Hidden states come from “{self._name}”, which runs {facts['name']} in {facts['dtype']}."

    def states(self, request: StatesRequest) -> HiddenStates:
        width = self._base.hidden_size
        max_bytes, body = request.numbers(width) * MAX_VALUE_BYTES, request.to_json(self._sha256)
        result = from_bytes(self._connection.request("POST", "/v1/hidden_states", max_bytes, json=body).content)
        check_shapes(result, request, width)
        return result
