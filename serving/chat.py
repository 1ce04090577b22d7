"""POST /v1/chat/completions and /v1/completions: OpenAI responses, whole or streamed, with the trace of every step."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from serving.catalog import ModelRef
from serving.engine import Engine, GenerationResult
from serving.errors import STOPPING, ApiError, as_api_error, body
from serving.prompts import Prompts
from serving.protocol import ChatRequest, Completion, CompletionRequest
from serving.queueing import Ticket
from serving.stream import Emit, QueuedWork, cancel_on_disconnect
from serving.token import client_of

STARTED = object()
CLIENT_CLOSED = 499
RequestBody = ChatRequest | CompletionRequest


def _prompt_ids(prompts: Prompts, ref: ModelRef, body: RequestBody) -> list[int]:
    if isinstance(body, ChatRequest):
        return prompts.render(ref, body.chat())
    return prompts.encode(ref, body.prompt) if isinstance(body.prompt, str) else body.prompt


async def respond(engine: Engine, ref: ModelRef, body: RequestBody, request: Request) -> Response:
    """The HTTP response. Errors before the first token set its status; later ones are sent as an event."""
    client, disconnected = client_of(request.scope), request.is_disconnected
    engine.queue.check_room(client)  # fail before the prompt is rendered
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
        return JSONResponse(completion.whole(result.text, result.token_ids, result.summary))
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
                    yield _event(completion.chunk(last, event.finish, speculation_summary=event.summary))
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
