"""POST /v1/chat/completions: OpenAI's answer, whole or as a stream, with the trace of every step beside the text."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from serving.catalog import ModelRef
from serving.engine import Answer, Engine
from serving.errors import ApiError, as_api_error, body, too_busy
from serving.protocol import ChatRequest, Completion, usage
from serving.queueing import Busy, Ticket
from serving.stream import Answering, Emit, unless_gone
from serving.token import client_of

STARTED = object()
CLIENT_CLOSED = 499


class _Emitting:
    """A sink whose calls become events of an Answering."""

    def __init__(self, emit: Emit):
        self._emit = emit

    def started(self, prompt_tokens: int, cached_tokens: int) -> None:
        self._emit(STARTED)

    def step(self, record: dict[str, Any]) -> None:
        self._emit(record)


def rendering(engine: Engine, ref: ModelRef, body: ChatRequest, client: str) -> Answering:
    """Queue the conversation for its template and tokenizer. Its event: the prompt's token ids."""
    try:
        engine.queue.check_room(client)  # rather than when the prompt is there
    except Busy as busy:
        raise too_busy(busy) from None
    return Answering(engine.prompts.queue, client, lambda _, emit: emit(engine.prompts.render(ref, body.chat())))


def answering(engine: Engine, ref: ModelRef, body: ChatRequest, prompt_ids: list[int], client: str) -> Answering:
    """Queue the generation. Its events: STARTED, records, then the Answer."""

    def work(ticket: Ticket, emit: Emit) -> None:
        emit(engine.answer(ref, body, prompt_ids, _Emitting(emit), ticket.cancelled))

    return Answering(engine.queue, client, work)


async def respond(engine: Engine, ref: ModelRef, body: ChatRequest, request: Request) -> Response:
    """The HTTP answer. Errors before the first token have their own status; later ones are sent as an event."""
    client = client_of(request.scope)
    rendered = rendering(engine, ref, body, client)
    prompt_ids = await unless_gone(request.is_disconnected, anext(rendered.events(), None), rendered)
    if prompt_ids is None:
        return _unanswered(engine)
    going_on = answering(engine, ref, body, prompt_ids, client)
    events = going_on.events()
    completion = Completion(ref.name, int(time.time()))
    if not body.stream:
        answer = await unless_gone(request.is_disconnected, _whole(events), going_on)
        return JSONResponse(_as_json(completion, answer)) if answer else _unanswered(engine)
    first = await unless_gone(request.is_disconnected, anext(events, None), going_on)
    if first is not STARTED:
        return _unanswered(engine)
    with_usage = bool(body.stream_options and body.stream_options.include_usage)
    return EventStream(_stream(completion, events, with_usage), going_on)


def _unanswered(engine: Engine) -> Response:
    """Nothing was said: the server stops, or nobody is there to hear it."""
    if engine.closing:
        return ApiError(503, "The inference server is stopping; send this again.", "unavailable").response()
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


async def _whole(events: AsyncIterator[Any]) -> Answer | None:
    """The Answer at the end of the events."""
    answer = None
    async for event in events:
        answer = event if isinstance(event, Answer) else answer
    return answer


def _as_json(completion: Completion, answer: Answer) -> dict[str, Any]:
    counts = usage(answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens)
    return completion.whole(answer.text, answer.finish, counts, speculation_summary=answer.summary)


async def _stream(completion: Completion, events: AsyncIterator[Any], with_usage: bool) -> AsyncIterator[str]:
    """One chunk a step; the last one waits for the summary and carries the finish reason."""
    last: dict[str, Any] | None = None
    try:
        async for event in events:
            if isinstance(event, Answer):
                for chunk in _ending(completion, last, event, with_usage):
                    yield _event(chunk)
            else:
                if last is not None:
                    yield _event(_chunk(completion, last, with_usage))
                last = event if event["finish"] else None
                if last is None:
                    yield _event(_chunk(completion, event, with_usage))
        yield "data: [DONE]\n\n"
    except Exception as error:
        refusal = as_api_error(error)
        yield _event(body(str(refusal), refusal.status, refusal.code, refusal.param))


def _chunk(completion: Completion, record: dict[str, Any], with_usage: bool, **extra: Any) -> dict[str, Any]:
    delta: dict[str, Any] = {"content": "".join(token["text"] for token in record["tokens"])}
    if record["index"] == 0:
        delta = {"role": "assistant", **delta}
    if with_usage:
        extra["usage"] = None
    return completion.chunk(delta, extra.pop("finish", None), speculation=record, **extra)


def _ending(
    completion: Completion, last: dict[str, Any] | None, answer: Answer, with_usage: bool
) -> list[dict[str, Any]]:
    chunks = []
    if last is not None:
        chunks.append(_chunk(completion, last, with_usage, finish=answer.finish, speculation_summary=answer.summary))
    if with_usage:
        counts = usage(answer.prompt_tokens, answer.cached_tokens, answer.completion_tokens)
        chunks.append(completion.usage_chunk(counts, answer.summary))
    return chunks


def _event(data: dict[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n"
