"""POST /v1/chat/completions and /v1/completions: OpenAI's answer, whole or as a stream, with the trace of every step
beside the text."""

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
from serving.stream import Answering, Emit, unless_gone
from serving.token import client_of

STARTED = object()
CLIENT_CLOSED = 499
Asked = ChatRequest | CompletionRequest


def rendering(engine: Engine, ref: ModelRef, body: Asked, client: str) -> Answering:
    """Queue the prompt for its template and tokenizer. Its event: the prompt's token ids."""
    engine.queue.check_room(client)  # rather than when the prompt is there
    return Answering(engine.prompts.queue, client, lambda _, emit: emit(_prompt_ids(engine.prompts, ref, body)))


def _prompt_ids(prompts: Prompts, ref: ModelRef, body: Asked) -> list[int]:
    if isinstance(body, ChatRequest):
        return prompts.render(ref, body.chat())
    return prompts.encode(ref, body.prompt) if isinstance(body.prompt, str) else body.prompt


def answering(engine: Engine, ref: ModelRef, body: Asked, prompt_ids: list[int], client: str) -> Answering:
    """Queue the generation. Its events: STARTED, records, then the Answer."""

    def work(ticket: Ticket, emit: Emit) -> None:
        emit(engine.answer(ref, body, prompt_ids, emit, ticket.cancelled, on_start=lambda: emit(STARTED)))

    return Answering(engine.queue, client, work)


async def respond(engine: Engine, ref: ModelRef, body: Asked, request: Request) -> Response:
    """The HTTP answer. Errors before the first token have their own status; later ones are sent as an event."""
    client = client_of(request.scope)
    rendered = rendering(engine, ref, body, client)
    prompt_ids = await unless_gone(request.is_disconnected, anext(rendered.events(), None), rendered)
    if prompt_ids is None:
        return _unanswered(engine)
    going_on = answering(engine, ref, body, prompt_ids, client)
    events = going_on.events()
    shown = prompt_ids if body.return_token_ids else None
    completion = Completion(ref.name, int(time.time()), isinstance(body, ChatRequest), shown)
    if not body.stream:
        answer = await unless_gone(request.is_disconnected, _whole(events), going_on)
        if answer is None:
            return _unanswered(engine)
        return JSONResponse(completion.whole(answer.text, answer.token_ids, answer.summary))
    first = await unless_gone(request.is_disconnected, anext(events, None), going_on)
    if first is not STARTED:
        return _unanswered(engine)
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    return EventStream(_stream(_Chunks(completion, with_usage), events), going_on)


def _unanswered(engine: Engine) -> Response:
    """Nothing was said: the server stops, or nobody is there to hear it."""
    if engine.closing:
        return ApiError(503, STOPPING, "unavailable").response()
    return Response(status_code=CLIENT_CLOSED)


class EventStream(StreamingResponse):
    """Server-sent events that cancel their generation however the response ends."""

    def __init__(self, content: AsyncIterator[str], going_on: Answering):
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(content, media_type="text/event-stream", headers=headers)
        self._going_on = going_on

    async def __call__(self, *connection: Any) -> None:
        try:
            await super().__call__(*connection)
        finally:
            self._going_on.cancel()


async def _whole(events: AsyncIterator[Any]) -> GenerationResult | None:
    """The Answer at the end of the events."""
    answer = None
    async for event in events:
        answer = event if isinstance(event, GenerationResult) else answer
    return answer


class _Chunks:
    """The chunks of one stream."""

    def __init__(self, completion: Completion, with_usage: bool):
        self._completion, self._with_usage = completion, with_usage

    def of(self, record: dict[str, Any], finish: str | None = None, **extra: Any) -> dict[str, Any]:
        """Of one step."""
        usage = {"usage": None} if self._with_usage else {}
        return self._completion.chunk(record, finish, **usage, **extra)

    def ending(self, last: dict[str, Any] | None, answer: GenerationResult) -> list[dict[str, Any]]:
        """The `last` step's, which waited for the summary, and the one with what was used."""
        chunks = []
        if last is not None:
            chunks.append(self.of(last, finish=answer.finish, speculation_summary=answer.summary))
        if self._with_usage:
            chunks.append(self._completion.usage_chunk(answer.summary))
        return chunks


async def _stream(chunks: _Chunks, events: AsyncIterator[Any]) -> AsyncIterator[str]:
    """One chunk a step; the last one waits for the summary and carries the finish reason."""
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
        refusal = as_api_error(error)
        yield _event(body(str(refusal), refusal.status, refusal.code, refusal.param))


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
