"""The reference server of hidden states: one base model, one forward at a time.

GET /healthz · GET /v1/base · POST /v1/hidden_states (see training/hidden_states/wire.py)
"""

import hmac
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import uvicorn
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from models.base import LoadedBase, load_base, pick_devices, training_dtype
from models.damage import UNSAVED, BaseChecksums, weights_sum
from models.families import unsupported_reason
from models.logits import check_logits
from models.runtime.precision import enable_tf32
from models.runtime.weights import pack_supported
from speculoos.checksums import ChecksumCache
from speculoos.connections import BoundedConnection
from speculoos.errors import BadInput, Conflict, SpeculoosError, Unavailable, Unsupported
from speculoos.faults import out_of_memory
from speculoos.guard import RequestGuard
from speculoos.settings import LOOPBACK
from training.hidden_states.wire import MEDIA_TYPE, MIN_LAYER_LIMIT, PROTOCOL, StatesRequest, compute_states

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 32 * 2**20
IDLE_SECONDS = 600  # keep-alive timeout: a training step between two requests may take minutes
NO_TOKEN = "A valid token is needed: Authorization: Bearer <SPECULOOS_FEATURES_TOKEN of the server>."
BUSY = "Too many requests are waiting; retry in a moment."
NonNegativeInt = Annotated[int, Field(ge=0, lt=1 << 31)]


class RequestLimits(BaseModel):
    model_config = ConfigDict(frozen=True)

    tokens: int = 65_536  # maximum rows × longest row of a request
    rows: int = 4096
    waiting: int = 16  # maximum requests in the server, the running one included


class StatesBody(BaseModel):
    """The body of POST /v1/hidden_states."""

    model_config = ConfigDict(extra="forbid")

    rows: list[list[NonNegativeInt]] = Field(min_length=1)
    layers: list[NonNegativeInt] = []
    positions: list[list[NonNegativeInt]] | None = None
    base_sha256: str = ""


def parse_request(body: bytes, base: Any, sha256: str, limits: RequestLimits) -> StatesRequest:
    """The validated request. Raises Conflict for another base, or BadInput that names the first invalid field."""
    try:
        request = StatesBody.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_input=False)[0]
        field = ".".join(map(str, problem["loc"])) or "body"
        raise BadInput(f"{field}: {problem['msg'][:1].lower()}{problem['msg'][1:]}.") from None
    if request.base_sha256 and request.base_sha256 != sha256:
        raise Conflict(
            f"This server runs a base with weights {sha256[:12]}…, the request is for {request.base_sha256[:12]}….",
            "Serve the base model of this training.",
        )
    lengths, positions = [*map(len, request.rows)], request.positions
    if len(lengths) > limits.rows or max(lengths) * len(lengths) > limits.tokens:
        raise BadInput(
            f"rows: {len(lengths)} rows of up to {max(lengths)} tokens are more than the {limits.rows} rows and "
            f"{limits.tokens} tokens that this server accepts at once; lower batch_tokens, or start it with a higher "
            "--max-tokens."
        )
    if max(lengths) > base.max_length or not min(lengths):
        raise BadInput(f"rows: each takes 1 to {base.max_length} tokens, got {min(lengths)} to {max(lengths)}.")
    if (highest := max(map(max, request.rows))) >= base.vocab_size:
        raise BadInput(f"rows: token id {highest} is not of this base, which has {base.vocab_size}.")
    if wrong := [layer for layer in request.layers if layer >= base.num_layers]:
        raise BadInput(f"layers: this base has layers 0 to {base.num_layers - 1}, got {wrong[0]}.")
    if len(request.layers) > (max_layers := max(base.num_layers, MIN_LAYER_LIMIT)):  # each adds to the response
        raise BadInput(f"layers: at most {max_layers} at once, got {len(request.layers)}.")
    if positions is not None and len(positions) != len(lengths):
        raise BadInput(f"positions: expected a list for each of {len(lengths)} rows, got {len(positions)}.")
    for row_positions, length in zip(positions or (), lengths, strict=False):
        if row_positions != sorted(set(row_positions)) or (row_positions and row_positions[-1] >= length):
            raise BadInput(f"positions: expected ascending positions of a row of {length} tokens.")
    rows, positions = (
        values and tuple(torch.tensor(row, dtype=torch.int32) for row in values)
        for values in (request.rows, request.positions)
    )
    return StatesRequest(rows, tuple(request.layers), positions)


class StatesEngine:
    """Computes hidden states. One thread runs the forwards in FIFO order; parsing and packing run on the callers'."""

    def __init__(self, base: Any, sha256: str, name: str, limits: RequestLimits):
        self.base, self.sha256, self.name, self.limits = base, sha256, name, limits
        count = torch.get_num_threads()  # the setting is per thread
        self.device = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(count,))
        self._slots = threading.BoundedSemaphore(limits.waiting)

    def base_info(self) -> dict[str, Any]:
        """The response of GET /v1/base."""
        base = self.base
        return {
            "protocol": PROTOCOL,
            "name": self.name,
            "base_sha256": self.sha256,
            "vocab_size": base.vocab_size,
            "hidden_size": base.hidden_size,
            "num_layers": base.num_layers,
            "max_length": base.max_length,
            "dtype": str(base.dtype).removeprefix("torch."),
            "limits": self.limits.model_dump(),
        }

    def compute(self, body: bytes) -> bytes | None:
        """The response body; None when too many requests are waiting. Raises BadInput or Conflict."""
        if not self._slots.acquire(blocking=False):
            return None
        try:
            states_request = parse_request(body, self.base, self.sha256, self.limits)
            return self.device.submit(compute_states, self.base, states_request).result().to_bytes()
        finally:
            self._slots.release()


class StatesTokenRequired:
    """ASGI middleware: requires the token for all of /v1, compared in constant time before the body is read."""

    def __init__(self, app: ASGIApp, token: str):
        self.app, self._expected = app, f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: Any = self.app
        if scope["type"] == "http" and scope["path"].startswith("/v1"):
            authorization = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(authorization, self._expected):
                app = error_response(401, NO_TOKEN)
        await app(scope, receive, send)


def create_app(engine: StatesEngine, port: int, token: str = "") -> FastAPI:
    """The server as an ASGI app. Without a `token`, only programs on this machine may use it (and no web page)."""
    app = FastAPI(title="Speculoos hidden states", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(Exception, _failed)
    app.add_exception_handler(SpeculoosError, _refused)

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/base")
    async def base() -> dict[str, Any]:
        return engine.base_info()

    @app.post("/v1/hidden_states")
    async def hidden_states(request: Request) -> Response:
        response = await run_in_threadpool(engine.compute, await request.body())
        if response is None:
            return error_response(503, BUSY, {"Retry-After": "1"})
        return Response(response, media_type=MEDIA_TYPE)

    if token:
        app.add_middleware(StatesTokenRequired, token=token)
    app.add_middleware(RequestGuard, port=port, max_body_bytes=MAX_BODY_BYTES, any_host=bool(token))
    return app


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """An error response in the shape that all servers of this project use."""
    return JSONResponse({"error": {"message": message}}, status, headers)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, SpeculoosError)
    status = 409 if isinstance(error, Conflict) else 400 if isinstance(error, BadInput) else 500
    return error_response(status, f"{error} {error.hint}".strip())


async def _failed(request: Request, error: Exception) -> JSONResponse:
    if out_of_memory(error):
        return error_response(500, "The server of hidden states is out of memory for this request; lower batch_tokens.")
    log.error("Unexpected error", exc_info=error)
    return error_response(500, "The server of hidden states could not finish this request; its log says why.")


@dataclass(frozen=True)
class ServerAddress:
    """Address to listen on, and the required token ("": none, on loopback only)."""

    host: str = "127.0.0.1"
    port: int = 7862
    token: str = ""

    def __post_init__(self) -> None:
        if self.host not in LOOPBACK and not self.token:
            raise BadInput(
                f"The server of hidden states would listen on {self.host} without a token; "
                "set SPECULOOS_FEATURES_TOKEN (or SPECULOOS_FEATURES_TOKEN_FILE)."
            )


def serve(
    folder: str | Path,
    address: ServerAddress,
    *,
    name: str = "",
    dtype: str = "float32",
    device: str = "auto",
    threads: int = 0,
    limits: RequestLimits | None = None,
    known: BaseChecksums | None = None,
    checksum_cache: ChecksumCache = UNSAVED,
    on_ready: Callable[[str], Any] = print,
) -> None:
    """Serve the base model in `folder` at `address` until stopped; `on_ready` gets a message with the URL."""
    listening = listen(address)
    if threads:
        torch.set_num_threads(threads)
    base, sha256 = load_served_base(folder, dtype, device, known, checksum_cache)
    port = listening.getsockname()[1]
    engine = StatesEngine(base, sha256, name or Path(folder).name, limits or RequestLimits())
    app = create_app(engine, port, address.token)
    host = f"[{address.host}]" if ":" in address.host else address.host
    on_ready(f"Hidden states of {engine.name} ({base.device}, {engine.base_info()['dtype']}) at http://{host}:{port}")
    config = uvicorn.Config(
        app, http=BoundedConnection, log_level="warning", access_log=False, timeout_keep_alive=IDLE_SECONDS
    )
    uvicorn.Server(config).run(sockets=[listening])


def load_served_base(
    folder: str | Path, dtype: str, device: str, known: BaseChecksums | None = None, cache: ChecksumCache = UNSAVED
) -> tuple[LoadedBase, str]:
    """The base model, checked and packed as for training, and the sha256 of its weights."""
    torch_device = pick_devices(device)[0]
    enable_tf32(torch_device)
    base = load_base(folder, training_dtype(dtype, torch_device), device, known, cache)
    if reason := unsupported_reason(base.config.to_dict()):
        raise Unsupported(f"Cannot train a draft for {folder}: {reason}")
    check_logits(base)
    pack_supported(base, head=False)
    return base, weights_sum(Path(folder), cache)


def listen(address: ServerAddress) -> socket.socket:
    """A listening socket, opened before the model is loaded so that a used port fails at once. Raises Unavailable."""
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family)
    except OSError as error:
        raise Unavailable(
            f"The server of hidden states cannot listen on {address.host}:{address.port} ({error.strerror}); "
            "another may run there already: choose another --port."
        ) from None
