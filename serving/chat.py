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


def submit_prompt(engine: Engine, ref: ModelRef, body: RequestBody, client: str) -> QueuedWork:
    """Queue the prompt for chat template and tokenizer. Its one event is the prompt's token ids."""
    engine.queue.check_room(client)  # fail before the prompt is rendered
    return QueuedWork(engine.prompts.queue, client, lambda _, emit: emit(_prompt_ids(engine.prompts, ref, body)))


def _prompt_ids(prompts: Prompts, ref: ModelRef, body: RequestBody) -> list[int]:
    if isinstance(body, ChatRequest):
        return prompts.render(ref, body.chat())
    return prompts.encode(ref, body.prompt) if isinstance(body.prompt, str) else body.prompt


def submit_generation(
    engine: Engine, ref: ModelRef, body: RequestBody, prompt_ids: list[int], client: str
) -> QueuedWork:
    """Queue the generation. Its events: STARTED, step records, then the GenerationResult."""

    def work(ticket: Ticket, emit: Emit) -> None:
        emit(engine.answer(ref, body, prompt_ids, emit, ticket.cancelled, on_start=lambda: emit(STARTED)))

    return QueuedWork(engine.queue, client, work)


async def respond(engine: Engine, ref: ModelRef, body: RequestBody, request: Request) -> Response:
    """The HTTP response. Errors before the first token set its status; later ones are sent as an event."""
    client = client_of(request.scope)
    prompt = submit_prompt(engine, ref, body, client)
    prompt_ids = await cancel_on_disconnect(request.is_disconnected, anext(prompt.events(), None), prompt)
    if prompt_ids is None:
        return _no_result(engine)
    generation = submit_generation(engine, ref, body, prompt_ids, client)
    events = generation.events()
    returned_ids = prompt_ids if body.return_token_ids else None
    completion = Completion(ref.name, int(time.time()), isinstance(body, ChatRequest), returned_ids)
    if not body.stream:
        result = await cancel_on_disconnect(request.is_disconnected, _result(events), generation)
        if result is None:
            return _no_result(engine)
        return JSONResponse(completion.whole(result.text, result.token_ids, result.summary))
    first = await cancel_on_disconnect(request.is_disconnected, anext(events, None), generation)
    if first is not STARTED:
        return _no_result(engine)
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    return EventStream(_stream(_Chunks(completion, with_usage), events), generation)


def _no_result(engine: Engine) -> Response:
    """The response when the server stops or the client has disconnected."""
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


async def _result(events: AsyncIterator[Any]) -> GenerationResult | None:
    """The result at the end of the events."""
    result = None
    async for event in events:
        result = event if isinstance(event, GenerationResult) else result
    return result


class _Chunks:
    def __init__(self, completion: Completion, with_usage: bool):
        self._completion, self._with_usage = completion, with_usage

    def of(self, record: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
        """The chunk of one step."""
        usage = {"usage": None} if self._with_usage else {}
        return self._completion.chunk(record, finish, **usage, **extra)

    def ending(self, last: dict[str, Any] | None, result: GenerationResult) -> list[dict[str, Any]]:
        """The chunk of the `last` step, which includes the summary, and the usage chunk."""
        chunks = []
        if last is not None:
            chunks.append(self.of(last, finish=result.finish, speculation_summary=result.summary))
        if self._with_usage:
            chunks.append(self._completion.usage_chunk(result.summary))
        return chunks


async def _stream(chunks: _Chunks, events: AsyncIterator[Any]) -> AsyncIterator[str]:
    """One chunk per step; the last one waits for the summary and has the finish reason."""
    last: dict[str, Any] | None = None
    try:
        async for event in events:
            if isinstance(event, GenerationResult):
                for chunk in chunks.ending(last, event):
                    yield _event(chunk)
            elif event["finish"]:
                last = event
            else:
                yield _event(chunks.of(event))
        yield "data: [DONE]\n\n"
    except Exception as error:
        api_error = as_api_error(error)
        yield _event(body(str(api_error), api_error.status, api_error.code, api_error.param))


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
