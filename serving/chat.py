"""POST /v1/chat/completions and /v1/completions: OpenAI responses, whole or streamed, with the trace of every step."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from serving.catalog import ModelRef
from serving.engine import Engine, GenerationResult
from serving.errors import STOPPING, ApiError, as_api_error, body
from serving.prompts import Prompts
from serving.protocol import ChatRequest, Completion, CompletionRequest
from serving.queueing import DeviceQueue, Ticket
from serving.token import CLIENT_SCOPE_KEY

STARTED = object()
CLIENT_CLOSED = 499
DISCONNECT_POLL = 0.2
Emit = Callable[[Any], None]
RequestBody = ChatRequest | CompletionRequest


class QueuedWork:
    """Work in a device's queue, whose events an async caller iterates; leaving the iteration cancels it."""

    def __init__(self, queue: DeviceQueue, client: str, work: Callable[[Ticket, Emit], None]):
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._ticket = queue.submit(client, self._run, lambda: self._put("end", None))

    def cancel(self) -> None:
        """Remove the work from the queue or stop it between steps; no effect if it has ended."""
        self._ticket.cancel()

    async def events(self) -> AsyncIterator[Any]:
        """Yield the events as they are emitted. Reraises the work's exception."""
        try:
            while True:
                kind, value = await self._events.get()
                if kind == "error":
                    raise value
                if kind == "end":
                    return
                yield value
        finally:
            self.cancel()

    def _run(self, ticket: Ticket) -> None:
        try:
            self._work(ticket, lambda event: self._put("event", event))
        except Exception as error:
            self._put("error", error)
        except BaseException as error:  # such as a Rust panic; it must not reach the event loop
            self._put("error", as_api_error(error))
            raise
        else:
            self._put("end", None)

    def _put(self, kind: str, value: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, (kind, value))


async def cancel_on_disconnect(
    disconnected: Callable[[], Awaitable[bool]], result: Awaitable[Any], work: QueuedWork
) -> Any:
    """Await `result`. If the client disconnects first, cancel `work` and return None."""
    task = asyncio.ensure_future(result)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=DISCONNECT_POLL)
            if not task.done() and await disconnected():
                return None
        return task.result()
    finally:
        if not task.done():
            work.cancel()
            task.cancel()


def _prompt_ids(prompts: Prompts, ref: ModelRef, body: RequestBody) -> list[int]:
    if isinstance(body, ChatRequest):
        return prompts.render(ref, body.chat())
    return prompts.encode(ref, body.prompt) if isinstance(body.prompt, str) else body.prompt


async def respond(engine: Engine, ref: ModelRef, body: RequestBody, request: Request) -> Response:
    """The HTTP response. Errors before the first token set its status; later ones are sent as an event."""
    client, disconnected = request.scope[CLIENT_SCOPE_KEY], request.is_disconnected
    engine.queue.check_capacity(client)  # fail before the prompt is rendered
    prompts = engine.prompts
    prompt = QueuedWork(prompts.queue, client, lambda _, emit: emit(_prompt_ids(prompts, ref, body)))
    prompt_ids = await cancel_on_disconnect(disconnected, anext(prompt.events(), None), prompt)
    if prompt_ids is None:
        return _no_result(engine)

    def generate(ticket: Ticket, emit: Emit) -> None:
        """Emits STARTED, the step records, then the GenerationResult."""
        emit(engine.answer(ref, body, prompt_ids, emit, ticket.cancelled, on_start=lambda: emit(STARTED)))

    generation = QueuedWork(engine.queue, client, generate)
    events = generation.events()
    completion = Completion(
        ref.name,
        int(time.time()),
        isinstance(body, ChatRequest),
        prompt_ids if body.return_token_ids else None,
        with_usage=bool(body.stream_options and body.stream_options.include_usage),
    )
    if not body.stream:
        result = await cancel_on_disconnect(disconnected, _last(events), generation)
        if not isinstance(result, GenerationResult):
            return _no_result(engine)
        return JSONResponse(completion.complete_response(result.text, result.token_ids, result.summary))
    if await cancel_on_disconnect(disconnected, anext(events, None), generation) is not STARTED:
        return _no_result(engine)
    return EventStream(_stream(completion, events), generation)


def _no_result(engine: Engine) -> Response:
    if engine.closing:
        return ApiError(503, STOPPING, "unavailable").response()
    return Response(status_code=CLIENT_CLOSED)


class EventStream(StreamingResponse):
    """Server-sent events. The generation is cancelled whenever the response ends."""

    def __init__(self, content: AsyncIterator[str], generation: QueuedWork):
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._generation = generation

    async def __call__(self, *connection: Any) -> None:
        try:
            await super().__call__(*connection)
        finally:
            self._generation.cancel()


async def _last(events: AsyncIterator[Any]) -> Any:
    last = None
    async for event in events:
        last = event
    return last


async def _stream(completion: Completion, events: AsyncIterator[Any]) -> AsyncIterator[str]:
    """One chunk per step; the last one waits for the summary and has the finish reason."""
    last: dict[str, Any] | None = None
    try:
        async for event in events:
            if isinstance(event, GenerationResult):
                if last is not None:
                    yield _event(completion.chunk(last, event.summary["finish"], speculation_summary=event.summary))
                if completion.with_usage:
                    yield _event(completion.usage_chunk(event.summary))
            elif event["finish"]:
                last = event
            else:
                yield _event(completion.chunk(event))
        yield "data: [DONE]\n\n"
    except Exception as error:
        api_error = as_api_error(error)
        yield _event(body(str(api_error), api_error.status, api_error.code, api_error.param))


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
