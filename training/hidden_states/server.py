"""The reference server of hidden states: one base model, one forward at a time.

GET /healthz · GET /v1/base · POST /v1/hidden_states (see training/hidden_states/wire.py)
"""

import hmac
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from speculoos.errors import BadInput, Conflict, SpeculoosError
from speculoos.faults import out_of_memory
from speculoos.guard import RequestGuard
from training.hidden_states.request import RequestLimits, parse_request
from training.hidden_states.wire import MEDIA_TYPE, PROTOCOL, compute_states

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 32 * 2**20
NO_TOKEN = "A valid token is needed: Authorization: Bearer <SPECULOOS_FEATURES_TOKEN of the server>."
BUSY = "Too many requests are waiting; retry in a moment."


class StatesEngine:
    """Computes hidden states. One thread runs the forwards in FIFO order; parsing and packing run on the callers'."""

    def __init__(self, base: Any, sha256: str, name: str, limits: RequestLimits):
        self.base, self.sha256, self.name, self.limits = base, sha256, name, limits
        count = torch.get_num_threads()  # the setting is per thread
        self.device = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(count,))
        self._slots = threading.BoundedSemaphore(limits.waiting)

    def facts(self) -> dict[str, Any]:
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
        return engine.facts()

    @app.post("/v1/hidden_states")
    async def hidden_states(request: Request) -> Response:
        answer = await run_in_threadpool(engine.compute, await request.body())
        if answer is None:
            return error_response(503, BUSY, {"Retry-After": "1"})
        return Response(answer, media_type=MEDIA_TYPE)

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
