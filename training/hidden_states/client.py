"""Common parts of all hidden states clients: base class, threads, and the HTTP connection with its error messages."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

import httpx
from torch import Tensor

from speculoos.errors import BadInput, Unavailable
from speculoos.redaction import cut_to_words
from speculoos.settings import HiddenStatesServer
from training.hidden_states.wire import HiddenStates, StatesRequest

CONNECT_SECONDS = 10.0
OVERHEAD_BYTES = 2**20
"""Limit for the part of a response body that is not hidden states."""
RETRYABLE_STATUSES = (408, 425, 429, 502, 503, 504)
"""HTTP statuses of temporary failures; the same request may succeed later."""
NO_COMPRESSION = {"Accept-Encoding": "identity"}
"""Request header that disables compression: a compressed response can expand to any size."""


class TemporarilyUnavailable(Unavailable):
    """The server is temporarily unavailable; retry."""


class StatesClient(ABC):
    """Source of hidden states. Thread-safe; `workers` is the useful number of concurrent calls."""

    workers = 2

    def check(self, rows: Sequence[Tensor]) -> str:
        """Verify that the server runs the base model of this training; returns a line for the log. `rows` are token
        ids that may be sent as a test. Raises TemporarilyUnavailable, or BadInput for another base model."""
        return ""

    @abstractmethod
    def states(self, request: StatesRequest) -> HiddenStates:
        """Raises TemporarilyUnavailable, or BadInput or Unavailable when a retry would not help."""

    def close(self) -> None:  # noqa: B027
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

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Any:
        return self._json(self._request("GET", path))

    def post(self, path: str, body: dict[str, Any], max_bytes: int) -> httpx.Response:
        """`max_bytes`: limit for the hidden states in the response body."""
        return self._request("POST", path, max_bytes, json=body)

    def post_json(self, path: str, body: dict[str, Any], max_bytes: int) -> Any:
        return self._json(self.post(path, body, max_bytes))

    def _request(self, verb: str, path: str, max_bytes: int = 0, **body: Any) -> httpx.Response:
        max_bytes += OVERHEAD_BYTES
        try:
            with self._client.stream(verb, path, **body) as streamed:
                content = read_limited(streamed, max_bytes)
        except httpx.TransportError as error:
            raise TemporarilyUnavailable(_reason(error)) from None
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
        message = _error_message(response)
        if status in RETRYABLE_STATUSES:
            raise TemporarilyUnavailable(message)
        if status in (401, 403):
            raise BadInput(f"{self._title} refuses us ({status}): {message}", self._key_hint)
        raise (BadInput if status < 500 else Unavailable)(f"{self._title} says: {message}")

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json()
        except ValueError:
            raise Unavailable(f"{self._title} did not send JSON; check its url.") from None


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "it cannot be reached"
    return "it takes too long" if isinstance(error, httpx.TimeoutException) else "the connection broke"


def _error_message(response: httpx.Response) -> str:
    """The error message in a response body; supports the shapes that different servers use."""
    status = f"{response.status_code} {response.reason_phrase}"
    try:
        body = response.json()
    except ValueError:
        return status
    error = body.get("error", body) if isinstance(body, dict) else {}
    message = error.get("message") if isinstance(error, dict) else error
    return cut_to_words(str(message or status), 500)


def read_limited(answer: httpx.Response, most: int) -> bytes | None:
    """The raw bytes of a streamed response; None, without reading further, if it has more than `most` bytes."""
    parts, size = [], 0
    for part in answer.iter_raw():
        size += len(part)
        if size > most:
            return None
        parts.append(part)
    return b"".join(parts)
