"""Several OpenAI-compatible servers asked as one: each request goes to one that answers, by load.

One that does not answer is left out for a moment, longer each time, and comes back with a single request (as a circuit
breaker does, half open). A request that it lost goes to another one, so no answer is lost, and none is taken twice.
A single server is asked with the client's own retries, which know `Retry-After`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import openai

from corpus.replies import FORMS, Reply, reply_of
from speculoos.errors import BadInput, Cancelled, Unavailable
from speculoos.redaction import cut
from speculoos.settings import Endpoint

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds a server is left out after the first failure, and at most; each time twice as long."""
PATIENCE = 120.0
"""Seconds in which not one of several servers answers, after which the work is given up."""
LOOK = 0.25
PASSING = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
"""What says something about a server's moment, not about the request."""


class Server:
    """One base URL: how many requests it has now, how often it failed in a row, and until when it is left out."""

    def __init__(self, endpoint: Endpoint, url: str, label: str, model: str, retries: int):
        self.endpoint, self.label, self.model = endpoint, label, model
        self.busy = self.failures = self.tokens = 0
        self.out_until = self.next_at = 0.0
        self.form: dict[str, Any] | None = None
        """With what it is asked for token ids; None until it was tried, {} where it says none."""
        self.trying = threading.Lock()
        key = endpoint.key or "none"
        self.client = openai.OpenAI(base_url=url, api_key=key, timeout=endpoint.timeout, max_retries=retries)

    def takes(self, at: float) -> bool:
        """Whether it may have one more request; after a failure only one, until that is answered."""
        most = 1 if self.failures else self.endpoint.concurrency
        return self.busy < most and at >= max(self.out_until, self.next_at)

    def took(self, at: float) -> None:
        """It has one more request; the next may come once its rate allows."""
        self.busy += 1
        if self.endpoint.requests_per_minute:
            self.next_at = max(at, self.next_at) + 60 / self.endpoint.requests_per_minute

    @property
    def load(self) -> float:
        return self.busy / self.endpoint.concurrency

    def failed(self, at: float, pause: float) -> bool:
        """Leave it out; False when it is out already (requests that were under way together fail together)."""
        if at < self.out_until:
            return False
        self.failures += 1
        self.out_until = at + max(pause, min(FIRST_PAUSE * 2 ** (self.failures - 1), LONGEST_PAUSE))
        return True


class EndpointPool:
    """The servers of some endpoints. `ask` may be called from many threads."""

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        model: str = "",
        say: Callable[[str, str], None] = lambda message, level: None,
        clock: Callable[[], float] = time.monotonic,
        probe: dict[str, Any] | None = None,
    ):
        """`model` is asked for in place of the endpoints' own; `say(message, level)` hears of servers that go and come
        back. `probe`: a small request, with which each server is asked first how it says token ids; None: they are not
        wanted. Raises BadInput when a model is named nowhere."""
        places = [(endpoint, url) for endpoint in endpoints for url in endpoint.urls]
        self.servers = [self._server(*place, model, len(places)) for place in places]
        self._say, self._clock, self._probe = say, clock, probe
        self._answered_at = clock()
        self._changed = threading.Condition()

    @property
    def most_retries(self) -> int:
        """Of one request, beside the client's own: a request that takes every server too long must end."""
        return sum(server.endpoint.retries + 1 for server in self.servers) if len(self.servers) > 1 else 0

    @property
    def slots(self) -> int:
        """Requests that may be under way at once."""
        return sum(server.endpoint.concurrency for server in self.servers)

    @property
    def tokens(self) -> dict[str, int]:
        """{server: tokens that it has generated}."""
        return {server.label: server.tokens for server in self.servers}

    def config(self) -> dict[str, str]:
        """Whom answers come from, for `dataset.json`: names of endpoints and of models."""
        names, models = [server.endpoint.name for server in self.servers], [server.model for server in self.servers]
        return {"endpoint": ",".join(dict.fromkeys(names)), "model": ",".join(dict.fromkeys(models))}

    def ask(self, stopped: threading.Event, **asked: Any) -> tuple[Reply, int]:
        """(an answer, retries) to a chat, or with a `prompt` to a plain completion. Raises what a server said of the
        request, or what became of it when each server had it `retries` times more; Unavailable when no server answers
        any more, Cancelled once `stopped` is set."""
        retries = 0
        while True:
            server = self._take(stopped)
            try:
                reply, again = _sent(server, self._form(server), asked)
            except PASSING as error:
                self._give_back(server, error)
                if retries >= self.most_retries:
                    raise
                retries += 1
            except BaseException:
                self._give_back(server)
                raise
            else:
                self._give_back(server, tokens=reply.tokens)
                return reply, retries + again

    def _server(self, endpoint: Endpoint, url: str, model: str, count: int) -> Server:
        if not (model := model or endpoint.model):
            raise BadInput(f"Endpoint {endpoint.name!r} names no model; give one here or in settings.toml.")
        number = endpoint.urls.index(url) + 1
        label = f"{endpoint.name} {number}" if len(endpoint.urls) > 1 else endpoint.name
        return Server(endpoint, url, label, model, endpoint.retries if count == 1 else 0)

    def _take(self, stopped: threading.Event) -> Server:
        with self._changed:
            while not stopped.is_set():
                at = self._clock()
                if free := [server for server in self.servers if server.takes(at)]:
                    server = min(free, key=lambda server: server.load)
                    server.took(at)
                    return server
                self._check_patience(at)
                self._changed.wait(self._pause(at))
        raise Cancelled("Stopped at your request.")

    def _pause(self, at: float) -> float:
        """Until a server's rate allows another request, as far as that is soon."""
        soon = [server.next_at - at for server in self.servers if server.next_at > at]
        return max(0.001, min([LOOK, *soon]))

    def _form(self, server: Server) -> dict[str, Any]:
        """With what a server is asked for token ids, found out by the first request to it."""
        if self._probe is None:
            return {}
        with server.trying:
            if server.form is None:
                server.form = _form_of(server, self._probe)
                if not server.form:
                    self._say(f"{server.label} says no token ids; its answers are tokenised for training.", "warning")
            return server.form

    def _check_patience(self, at: float) -> None:
        if all(server.failures for server in self.servers) and at - self._answered_at > PATIENCE:
            names = ", ".join(server.label for server in self.servers)
            raise Unavailable(
                f"None of the endpoints has answered for {PATIENCE:.0f} s: {names}.",
                "What was finished is kept; retry when they answer again.",
            )

    def _give_back(self, server: Server, error: Exception | None = None, tokens: int = 0) -> None:
        """The request is over; without an `error` the server is well."""
        with self._changed:
            server.busy -= 1
            server.tokens += tokens
            news = self._failed(server, error) if error and len(self.servers) > 1 else self._well(server)
            self._changed.notify()
        if news:
            self._say(*news)

    def _failed(self, server: Server, error: Exception) -> tuple[str, str] | None:
        first = server.failures == 0
        if server.failed(self._clock(), _retry_after(error)) and first:
            return f"{server.label} does not answer ({plain_reason(error)}); the others go on without it.", "warning"
        return None

    def _well(self, server: Server) -> tuple[str, str] | None:
        self._answered_at = self._clock()
        back, server.failures, server.out_until = server.failures > 0, 0, 0.0
        return (f"{server.label} answers again.", "info") if back else None


def _sent(server: Server, form: dict[str, Any], asked: dict[str, Any]) -> tuple[Reply, int]:
    """(the answer of a server, its client's own retries)."""
    kind = server.client.completions if "prompt" in asked else server.client.chat.completions
    extra = {**form, **asked.get("extra_body", {})}
    raw = kind.with_raw_response.create(model=server.model, **{**asked, "extra_body": extra or None})
    body = _json(raw.http_response)
    return replace(reply_of(body), body=body, seconds=raw.elapsed.total_seconds()), raw.retries_taken


def _json(response: Any) -> Any:
    """Raises ValueError where there is none."""
    try:
        return response.json()
    except (ValueError, RecursionError):
        raise ValueError("an answer that is no JSON") from None


def _form_of(server: Server, probe: dict[str, Any]) -> dict[str, Any]:
    """The first form upon which a server says token ids, {} for none: those it does not know it refuses, or ignores."""
    for form in FORMS:
        with suppress(openai.BadRequestError, openai.UnprocessableEntityError):
            if _sent(server, form, probe)[0].ids:
                return form
    return {}


def plain_reason(error: Exception) -> str:
    """One short line: the status and what the endpoint said."""
    if isinstance(error, openai.APITimeoutError):
        return "no answer within the time limit"
    if isinstance(error, openai.APIConnectionError):
        return "no connection"
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, dict) else None
    text = cut(str(said or error).splitlines()[0], 200) if str(said or error) else type(error).__name__
    status = getattr(error, "status_code", None)
    return f"{status} {text}" if status and not text.startswith(str(status)) else text


def _retry_after(error: Exception) -> float:
    """Seconds that the server asked for, two minutes at most; 0 where it did not."""
    response = getattr(error, "response", None)
    text = response.headers.get("retry-after", "") if response is not None else ""
    return min(float(text), PATIENCE) if text.replace(".", "", 1).isdigit() else 0.0
