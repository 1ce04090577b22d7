"""Common parts of all hidden states clients: the client protocol, the HTTP connection and its error messages."""

from collections.abc import Sequence
from typing import Any, Protocol

import httpx
from torch import Tensor

from speculoos.bounded import NO_COMPRESSION, read_limited
from speculoos.errors import BadInput, Unavailable
from speculoos.redaction import cut_to_words
from speculoos.settings import HiddenStatesServer
from training.hidden_states.wire import HiddenStates, StatesRequest

CONNECT_SECONDS = 10.0
OVERHEAD_BYTES = 2**20
"""Limit for the part of a response body that is not hidden states."""
RETRYABLE_STATUSES = (408, 425, 429, 502, 503, 504)
"""HTTP statuses of temporary failures; the same request may succeed later."""


class TemporarilyUnavailable(Unavailable):
    """The server is temporarily unavailable; retry."""


class StatesClient(Protocol):
    """Source of hidden states. Thread-safe; `workers` is the useful number of concurrent calls."""

    workers: int

    def check(self, rows: Sequence[Tensor]) -> str:
        """Verify that the server runs the base model of this training; returns a line for the log. `rows` are token
        ids that may be sent as a test. Raises Away, or BadInput for another base model."""

    def states(self, request: StatesRequest) -> HiddenStates:
        """Raises Away, or BadInput or Unavailable when a retry would not help."""

    def close(self) -> None:
        """Release the connections; no further calls."""


class StatesConnection:
    """HTTP to one server over persistent connections."""

    def __init__(self, server: HiddenStatesServer):
        self.name = server.name
        headers = NO_COMPRESSION | ({"Authorization": f"Bearer {server.key}"} if server.key else {})
        timeout = httpx.Timeout(server.timeout, connect=CONNECT_SECONDS)
        self._client = httpx.Client(base_url=server.root, headers=headers, timeout=timeout)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Any:
        """The parsed JSON response."""
        return _json(self._request("GET", path), self.name)

    def post(self, path: str, body: dict[str, Any], max_bytes: int = 0) -> httpx.Response:
        """`max_bytes`: limit for the hidden states in the response body."""
        return self._request("POST", path, max_bytes, json=body)

    def post_json(self, path: str, body: dict[str, Any], max_bytes: int = 0) -> Any:
        return _json(self.post(path, body, max_bytes), self.name)

    def _request(self, verb: str, path: str, max_bytes: int = 0, **body: Any) -> httpx.Response:
        max_bytes += OVERHEAD_BYTES
        try:
            with self._client.stream(verb, path, **body) as streamed:
                content = read_limited(streamed, max_bytes)
        except httpx.TransportError as error:
            raise TemporarilyUnavailable(_reason(error)) from None
        except httpx.HTTPError as error:
            raise Unavailable(f"The server of hidden states “{self.name}”: invalid response ({error}).") from None
        if content is None:
            raise BadInput(
                f"The server of hidden states “{self.name}” answers {path} with more than the {max_bytes / 1e6:,.1f} "
                "MB that this request allows; the rest was not read.",
                "Serve the base model of this training, with a server of the kind set in settings.toml.",
            )
        response = httpx.Response(streamed.status_code, content=content)
        if response.status_code in RETRYABLE_STATUSES:
            raise TemporarilyUnavailable(_error_message(response))
        if response.status_code >= 400:
            raise _refusal(response, self.name)
        return response


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "it cannot be reached"
    return "it takes too long" if isinstance(error, httpx.TimeoutException) else "the connection broke"


def _refusal(response: httpx.Response, name: str) -> BadInput | Unavailable:
    status, message = response.status_code, _error_message(response)
    if status in (401, 403):
        return BadInput(
            f"The server of hidden states “{name}” refuses us ({status}): {message}",
            f"Set the environment variable named by key_env of [hidden_states.{name}] in settings.toml.",
        )
    kind = BadInput if status < 500 else Unavailable
    return kind(f"The server of hidden states “{name}” says: {message}")


def _error_message(response: httpx.Response) -> str:
    """The error message in a response body; supports the shapes that different servers use."""
    try:
        body = response.json()
    except ValueError:
        return f"{response.status_code} {response.reason_phrase}"
    error = body.get("error", body) if isinstance(body, dict) else {}
    message = error.get("message") if isinstance(error, dict) else error
    return cut_to_words(str(message or f"{response.status_code} {response.reason_phrase}"), 500)


def _json(response: httpx.Response, name: str) -> Any:
    try:
        return response.json()
    except ValueError:
        raise Unavailable(f"The server of hidden states “{name}” did not send JSON; check its url.") from None
