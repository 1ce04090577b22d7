"""The inference server: `python -m serving.main`. This module wires up the routes:

GET /healthz · GET /readyz · GET /metrics
GET /v1/models · GET /v1/models/{name} · POST /v1/chat/completions · POST /v1/completions
POST /v1/runs/{id}[/cancel] · POST /v1/release_memory
"""

import gc
import logging
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

if __name__ == "__main__":
    gc.disable()  # until it serves: objects created by imports are kept

import uvicorn
from fastapi import Body, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy import text

from models.runtime.speed import SPEED_FILE, measure_best
from serving import chat, errors
from serving.catalog import list_models, local_model, model_entry
from serving.engine import Engine
from serving.live import LiveRuns
from serving.metrics import RequestTimer
from serving.protocol import ChatRequest, CompletionRequest
from serving.token import ApiKeyRequired, ApiKeys, with_token
from serving.watch import DeviceWatch, Upkeep, end_process
from speculoos import logs
from speculoos.connections import BoundedConnection, raise_open_file_limit
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.guard import RequestGuard
from speculoos.private import set_private_umask
from speculoos.settings import Settings, load
from tracking import runs
from tracking.db import reading, writing

log = logging.getLogger(__name__)
MAX_BODY_BYTES = 8 * 2**20
STOP_SECONDS = 1


def create_app(
    settings: Settings, engine: Engine | None = None, on_stuck: Callable[[str], None] | None = None
) -> FastAPI:
    """The server as an ASGI app; it closes the engine at shutdown. `on_stuck` is called with the reason when the
    device's thread hangs or died; by default only /healthz reports it."""
    assert settings.inference_token, "call with_token() first"
    engine = engine or Engine(settings)
    live, keys = LiveRuns(settings, engine), ApiKeys(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(_fail_leftovers, settings)
        engine.prompts.warm_up()
        upkeep = Upkeep(settings, engine, live, keys)
        watch = DeviceWatch(lambda: engine.failure, settings.stuck_seconds if on_stuck else 0, on_stuck or log.critical)
        yield
        await run_in_threadpool(watch.close)
        await run_in_threadpool(upkeep.close)
        await run_in_threadpool(engine.close)
        await run_in_threadpool(live.close)

    app = FastAPI(title="Speculoos inference", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.engine, app.state.live = engine, live
    errors.install(app)
    _add_health(app, settings, engine)
    _add_api(app, settings, engine, live)
    app.add_middleware(ApiKeyRequired, token=settings.inference_token, keys=keys)
    hosts = {"port": settings.inference_port, "allowed_hosts": settings.inference_hosts}
    app.add_middleware(RequestGuard, **hosts, max_body_bytes=MAX_BODY_BYTES)
    requests = engine.metrics.requests
    app.add_middleware(RequestTimer, observe=lambda route, status: requests.labels(route, status).observe)
    return app


def _fail_leftovers(settings: Settings) -> None:
    with writing(settings) as session:
        if count := runs.fail_leftovers(session):
            log.warning("%d runs of an earlier server were marked as failed", count)


def _add_health(app: FastAPI, settings: Settings, engine: Engine) -> None:
    @app.get("/healthz")
    async def health() -> JSONResponse:  # not in the thread pool, whose threads may all wait for the stuck device
        heartbeat, failure = engine.queue.heartbeat, engine.failure
        status = {
            "status": failure or "ok",
            "device": engine.device,
            "dtype": engine.dtype,
            "warm_models": len(engine.pool),
            "busy": engine.queue.busy,
            "waiting": engine.queue.waiting,
            "doing": heartbeat.doing,
            "heartbeat_age": round(heartbeat.age, 3),
        }
        return JSONResponse(status, 503 if failure else 200)

    @app.get("/readyz")
    def ready() -> JSONResponse:
        database_error = ""
        try:
            with reading(settings) as session:
                session.execute(text("SELECT 1 FROM runs LIMIT 1"))
        except SpeculoosError as error:
            database_error = str(error)
        parts = {"device": engine.failure, "database": database_error}
        status = {name: reason or "ok" for name, reason in parts.items()}
        return JSONResponse({"ready": not any(parts.values()), **status}, 503 if any(parts.values()) else 200)

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(engine.metrics.text(), media_type=CONTENT_TYPE_LATEST)


def _add_api(app: FastAPI, settings: Settings, engine: Engine, live: LiveRuns) -> None:
    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        with reading(settings) as session:
            return {"object": "list", "data": list_models(session)}

    @app.get("/v1/models/{name:path}")
    def model(name: str) -> dict[str, Any]:
        with reading(settings) as session:
            return model_entry(session, name)

    @app.post("/v1/chat/completions")
    async def complete(body: ChatRequest, request: Request) -> Response:
        ref = await run_in_threadpool(local_model, settings, body.model)
        return await chat.respond(engine, ref, body, request)

    @app.post("/v1/completions")
    async def complete_text(body: CompletionRequest, request: Request) -> Response:
        ref = await run_in_threadpool(local_model, settings, body.model)
        return await chat.respond(engine, ref, body, request)

    @app.post("/v1/runs/{run_id}", status_code=202)
    def start(run_id: str) -> dict[str, Any]:
        return {"id": run_id, "queued": live.start(run_id)}

    @app.post("/v1/runs/{run_id}/cancel", status_code=202)
    def cancel(run_id: str) -> dict[str, Any]:
        return {"id": run_id, "cancelled": live.cancel(run_id)}

    @app.post("/v1/release_memory")
    def release_memory(devices: Annotated[list[str], Body(embed=True)]) -> dict[str, Any]:
        return engine.release_memory(devices)


def main() -> int:
    """Serve until a stop signal. Prints one sentence to standard error if the settings or the port are wrong."""
    set_private_umask()
    try:
        settings = with_token(load())
        logs.configure_logging(settings, "inference")
        listener = _listen(settings)  # first: a second server must fail before it ends the runs of the first
        app = create_app(settings, on_stuck=end_process)
    except SpeculoosError as error:
        print(f"{error} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code
    threading.Thread(
        target=measure_best, args=(settings.home / SPEED_FILE, app.state.engine.device), name="speed", daemon=True
    ).start()
    log.info("Inference server on http://%s:%d", settings.inference_host, settings.inference_port)
    raise_open_file_limit()
    gc.freeze()
    gc.enable()
    uvicorn.Server(server_config(app)).run(sockets=[listener])
    return 0


def server_config(app: Any) -> uvicorn.Config:
    """Proxy headers are ignored: clients that forge them could take turns of other clients in the queue."""
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def _listen(settings: Settings) -> socket.socket:
    host, port = settings.inference_host, settings.inference_port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # detects clients whose machine vanished
        return listener
    except OSError as error:
        raise Unavailable(
            f"The inference server cannot listen on {host}:{port} ({error.strerror}); "
            "stop the program that uses it or set SPECULOOS_INFERENCE_PORT."
        ) from None


if __name__ == "__main__":
    sys.exit(main())
