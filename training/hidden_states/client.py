"""Clients of servers of hidden states: the project's own server, and vLLM."""

import fcntl
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from speculoos.errors import BadInput, Unavailable, Unsupported
from speculoos.redaction import cut_to_words
from speculoos.settings import HiddenStatesServer
from training.hidden_states import wire
from training.hidden_states.wire import HiddenStates, StatesRequest, check_shapes, concat_states, from_bytes

CONNECT_SECONDS = 10.0
OVERHEAD_BYTES = 2**20  # limit for the part of a response body that is not hidden states
RETRYABLE_STATUSES = (408, 425, 429, 502, 503, 504)
"""HTTP statuses of temporary failures; the same request may succeed later."""
CHECK_ROWS, CHECK_TOKENS = 6, 64
JSON_NUMBER_CHARS = 32  # maximum characters of one number in JSON, separator included
WRITE_SECONDS = 60.0
POLL_SECONDS = 0.02
NO_COMPRESSION = {"Accept-Encoding": "identity"}
"""Request header that disables compression: a compressed response can expand to any size."""


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

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
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
            raise BadInput(f"{self._title} rejected the request ({status}): {message}", self._key_hint)
        raise (BadInput if status < 500 else Unavailable)(f"{self._title} returned an error: {message}")


class ReferenceClient(StatesClient):
    """Client of the project's own server: one request per batch, with the weights' sha256, so that another base model
    is detected at once. While one batch is computed, another is transferred."""

    def __init__(self, server: HiddenStatesServer, base: Any, sha256: str):
        self._connection, self._base, self._sha256 = StatesConnection(server), base, sha256
        self._name, self.close = server.name, self._connection.close

    def check(self, rows: Sequence[Tensor]) -> str:
        base_info = self._connection.json("GET", "/v1/base")
        if not isinstance(base_info, dict) or base_info.get("protocol") != wire.PROTOCOL:
            raise BadInput(f"“{self._name}” is not a hidden states server of this version; check its url.")
        if (served := str(base_info.get("base_sha256"))) != self._sha256:
            raise BadInput(
                f"The server of hidden states “{self._name}” runs other weights ({served[:12]}…) than this training's "
                f"base ({self._sha256[:12]}…).",
                "Serve the base model of this training, or choose another server.",
            )
        return f"Hidden states come from “{self._name}”, which runs {base_info['name']} in {base_info['dtype']}."

    def states(self, request: StatesRequest) -> HiddenStates:
        hidden_size = self._base.hidden_size
        max_bytes, body = request.num_values(hidden_size) * wire.MAX_VALUE_BYTES, request.to_json(self._sha256)
        result = from_bytes(self._connection.request("POST", "/v1/hidden_states", max_bytes, json=body).content)
        check_shapes(result, request, hidden_size)
        return result


class VllmClient(StatesClient):
    """Client of vLLM with `extract_hidden_states` and ExampleHiddenStatesConnector, started as speculators does. The
    response to a completion of one token names a safetensors file in a shared folder, locked while it is written.

    The file holds `hidden_states` [tokens, columns, H] and `token_ids`. For the layer ids the server was started with,
    a column is the *input* of layer i (our 0-based output i − 1), before any norm; the last one is the last layer's
    output. vLLM reports no checksum: the tokens that it generates are compared with those of our base model's head.
    """

    def __init__(self, server: HiddenStatesServer, base: Any):
        self.connection, self.base, self.server, self._model = StatesConnection(server), base, server, server.model
        self._pool = DaemonPool(server.concurrency)

    def check(self, rows: Sequence[Tensor]) -> str:
        """At least half of the tokens must match, since near ties may differ."""
        answers = [self._row(row[:CHECK_TOKENS].tolist(), ()) for row in rows[:CHECK_ROWS]]
        chosen = [(states.hidden[-1], token) for states, token in answers if token is not None]
        source = f"Hidden states come from vLLM “{self.server.name}”, which runs {self.model}"
        if not chosen:
            return f"{source}: it does not report the tokens it chose, so its base model cannot be verified."
        last = torch.stack([hidden for hidden, _ in chosen]).to(self.base.device, self.base.dtype)
        with torch.no_grad():
            ours = self.base.logits(last).argmax(-1).tolist()
        same = sum(our == token for our, (_, token) in zip(ours, chosen, strict=True))
        if same * 2 < len(chosen):
            raise BadInput(
                f"The server of hidden states “{self.server.name}” chose the token that this base's head computes from "
                f"its hidden states in {same} of {len(chosen)} rows: it runs another base, or sends other layers.",
                "Serve the base model of this training, with the layers named in docs/training.md.",
            )
        return f"{source}: {same} of {len(chosen)} tokens it chose are those of this base's head."

    def states(self, request: StatesRequest) -> HiddenStates:
        futures = [self._pool.submit(self._row, row.tolist(), request.layers) for row in request.rows]
        parts = []
        for number, future in enumerate(futures):
            row, _ = future.result()
            hidden = row.hidden if request.positions is None else row.hidden[request.positions[number].long()]
            parts.append(HiddenStates(hidden, row.aux))
        result = concat_states(parts)
        check_shapes(result, request, self.base.hidden_size)
        return result

    def close(self) -> None:
        self._pool.close()
        self.connection.close()

    @property
    def model(self) -> str:
        if not self._model:
            models = self.connection.json("GET", "/v1/models")
            try:
                self._model = models["data"][0]["id"]
            except (KeyError, IndexError, TypeError):
                raise Unavailable(f"vLLM “{self.server.name}” lists no model; name it in settings.toml.") from None
        return self._model

    def _row(self, ids: list[int], layers: tuple[int, ...]) -> tuple[HiddenStates, int | None]:
        """Hidden states of one row at all of its tokens, and the generated token (None if not reported)."""
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "return_token_ids": True}
        answer = self.connection.json("POST", "/v1/completions", len(ids) * JSON_NUMBER_CHARS, json=body)
        path, token = self._file_and_token(answer, ids)
        columns, norm = self._read_file(path, ids, layers), self.base.final_norm
        if norm is None:
            raise Unsupported(f"{type(self.base.model).__name__}: its final norm is unknown; train without a server.")
        with torch.no_grad():
            hidden = norm(columns[:, -1].to(self.base.device, self.base.dtype))
        return HiddenStates(hidden, columns[:, : len(layers)].flatten(1)), token

    def _file_and_token(self, answer: Any, ids: list[int]) -> tuple[Path, int | None]:
        try:
            choice, name = answer["choices"][0], answer["kv_transfer_params"]["hidden_states_path"]
            prompt_ids, chosen, path = choice["prompt_token_ids"], choice.get("token_ids"), Path(name)
            if "\0" in name:
                raise ValueError(name)
        except (KeyError, IndexError, TypeError, ValueError):
            raise BadInput(
                f"vLLM “{self.server.name}” did not return a hidden states file.",
                "Start it with extract_hidden_states and ExampleHiddenStatesConnector (docs/training.md).",
            ) from None
        if prompt_ids != ids:
            raise BadInput(f"vLLM “{self.server.name}” read other tokens than it was sent.")
        reported = isinstance(chosen, list) and chosen and type(chosen[0]) is int
        return path, chosen[0] if reported else None

    def _read_file(self, path: Path, ids: list[int], layers: tuple[int, ...]) -> Tensor:
        """The hidden states in a file, which is deleted. Shapes are checked first: the server may name any file."""
        lock = path.with_name(path.name + ".lock")
        self._wait(lock, path)
        try:
            with safe_open(path, "pt") as tensors:
                ids_shape, shape = (tensors.get_slice(name).get_shape() for name in ("token_ids", "hidden_states"))
                if ids_shape != [len(ids)] or tensors.get_tensor("token_ids").tolist() != ids or shape[:1] != ids_shape:
                    raise BadInput(f"vLLM “{self.server.name}”: {path} holds hidden states of other tokens.")
                self._check_columns(shape, layers)
                states = tensors.get_tensor("hidden_states")
        except FileNotFoundError:
            raise BadInput(
                f"vLLM “{self.server.name}” wrote {path}, which does not exist here.",
                "Its shared_storage_path must be the same folder, at the same path, for server and training.",
            ) from None
        except (OSError, SafetensorError) as error:
            raise TemporarilyUnavailable(f"its file {path.name} cannot be read ({error})") from None
        for file in (path, lock):  # the token ids prove that it is our request's file
            with suppress(OSError):
                file.unlink(missing_ok=True)
        return states

    def _wait(self, lock: Path, path: Path) -> None:
        """Wait until the server releases the lock, or exits; without a lock the file is complete already."""
        with suppress(OSError), open(lock, "rb") as handle:
            deadline = time.monotonic() + WRITE_SECONDS
            while True:
                try:
                    return fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        problem = f"it has been writing {path.name} for {WRITE_SECONDS:.0f} s"
                        raise TemporarilyUnavailable(problem) from None
                    time.sleep(POLL_SECONDS)

    def _check_columns(self, shape: list[int], layers: tuple[int, ...]) -> None:
        columns, hidden_size = (*shape[1:], 0, 0)[:2]
        max_columns = max(self.base.num_layers, wire.MIN_LAYER_LIMIT) + 1
        if len(shape) != 3 or not 0 < columns <= max_columns or hidden_size != self.base.hidden_size:
            raise BadInput(
                f"vLLM “{self.server.name}” sends hidden states of {columns} layers and {hidden_size} "
                f"numbers; this base's have {self.base.hidden_size}, of {max_columns} layers at most.",
                "Serve the base model of this training.",
            )
        if layers and columns != len(layers) + 1:
            ids = [*(layer + 1 for layer in layers), self.base.num_layers]
            raise BadInput(
                f"vLLM “{self.server.name}” sends {columns} layers, expected are {len(layers)} and the last.",
                f"Start it with eagle_aux_hidden_state_layer_ids {ids}.",
            )


def read_limited(answer: httpx.Response, max_bytes: int) -> bytes | None:
    """The raw bytes of a streamed response; None, without reading further, if it has more than `max_bytes` bytes."""
    parts, size = [], 0
    for part in answer.iter_raw():
        size += len(part)
        if size > max_bytes:
            return None
        parts.append(part)
    return b"".join(parts)
