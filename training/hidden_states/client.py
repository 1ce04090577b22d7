"""What all clients of servers of hidden states have in common: the face, the connection, the sentences for refusals."""

from collections.abc import Sequence
from typing import Any, Protocol

import httpx
from torch import Tensor

from speculoos.bounded import AS_IT_IS, read_whole
from speculoos.errors import BadInput, Unavailable
from speculoos.redaction import cut
from speculoos.settings import StateServer
from training.hidden_states.wire import HiddenStates, StatesRequest

CONNECT_SECONDS = 10.0
WORDS_BYTES = 2**20
"""Of an answer that holds no hidden states, or of what stands beside them."""
PASSING = (408, 425, 429, 502, 503, 504)
"""Answers that say something about a server's moment, not about the request."""


class Away(Unavailable):
    """No answer now; asking again is worth it."""


class Client(Protocol):
    """Any thread may call; `workers` threads at once are worth it."""

    workers: int

    def check(self, rows: Sequence[Tensor]) -> str:
        """Is this the base that is trained for? One line for the log. `rows` of token ids may be tried. Raises Away,
        or BadInput when it is another."""

    def states(self, asked: StatesRequest) -> HiddenStates:
        """Raises Away, or BadInput or Unavailable when asking again would not help."""

    def close(self) -> None:
        """Nothing is asked any more."""


class Connection:
    """HTTP to one server, its connections kept."""

    def __init__(self, server: StateServer):
        self.name = server.name
        headers = AS_IT_IS | ({"Authorization": f"Bearer {server.key}"} if server.key else {})
        timeout = httpx.Timeout(server.timeout, connect=CONNECT_SECONDS)
        self._client = httpx.Client(base_url=server.root, headers=headers, timeout=timeout)

    def close(self) -> None:
        self._client.close()

    def get(self, path: str) -> Any:
        """JSON."""
        return _json(self._asked("GET", path), self.name)

    def post(self, path: str, body: dict[str, Any], most: int = 0) -> httpx.Response:
        """`most`: bytes that hidden states in the answer can have."""
        return self._asked("POST", path, most, json=body)

    def post_json(self, path: str, body: dict[str, Any], most: int = 0) -> Any:
        return _json(self.post(path, body, most), self.name)

    def _asked(self, verb: str, path: str, most: int = 0, **body: Any) -> httpx.Response:
        most += WORDS_BYTES
        try:
            with self._client.stream(verb, path, **body) as streamed:
                content = read_whole(streamed, most)
        except httpx.TransportError as error:
            raise Away(_reason(error)) from None
        except httpx.HTTPError as error:
            raise Unavailable(f"The server of hidden states “{self.name}” answered badly ({error}).") from None
        if content is None:
            raise BadInput(
                f"The server of hidden states “{self.name}” answers {path} with more than the {most / 1e6:,.1f} MB "
                "that what was asked can take; the rest was not read.",
                "Serve the base that is trained for, with a server of the kind that settings.toml says.",
            )
        response = httpx.Response(streamed.status_code, content=content)
        if response.status_code in PASSING:
            raise Away(_said(response))
        if response.status_code >= 400:
            raise _refusal(response, self.name)
        return response


def _reason(error: httpx.TransportError) -> str:
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "it cannot be reached"
    return "it takes too long" if isinstance(error, httpx.TimeoutException) else "the connection broke"


def _refusal(response: httpx.Response, name: str) -> BadInput | Unavailable:
    status, said = response.status_code, _said(response)
    if status in (401, 403):
        return BadInput(
            f"The server of hidden states “{name}” refuses us ({status}): {said}",
            f"Set the variable that key_env of [hidden_states.{name}] in settings.toml names.",
        )
    kind = BadInput if status < 500 else Unavailable
    return kind(f"The server of hidden states “{name}” says: {said}")


def _said(response: httpx.Response) -> str:
    """An error's own sentence, in whatever shape servers give it."""
    try:
        body = response.json()
    except ValueError:
        return f"{response.status_code} {response.reason_phrase}"
    error = body.get("error", body) if isinstance(body, dict) else {}
    said = error.get("message") if isinstance(error, dict) else error
    return cut(str(said or f"{response.status_code} {response.reason_phrase}"), 500)


def _json(response: httpx.Response, name: str) -> Any:
    try:
        return response.json()
    except ValueError:
        raise Unavailable(f"The server of hidden states “{name}” gave no JSON; is the url right?") from None
