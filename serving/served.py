"""Responses of served models: chat completions of the operator's endpoints, streamed by this process for the pages.

What a server reports about its drafting is stored with the response. Tokens get an origin only from data of single
steps (vLLM with `--per-request-spec-decode-metrics detailed`, Speculoos); the others keep the origin `unknown`.
"""

import asyncio
import codecs
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import openai

from corpus.endpoints import short_error
from corpus.replies import REASONING
from decoding.step import Step
from evaluation.published import META_INFO, acceptance_of_answer
from evaluation.served import SERVERS, server_key
from serving.served_steps import chunk_record, emitted_steps, rates_of_steps, records_of_steps
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable
from speculoos.redaction import known_secrets, redact
from speculoos.settings import Endpoint, Settings

CONNECT_SECONDS = 10.0
MAX_CHARACTERS = 1 << 20
"""Maximum length of a response."""
LAST_FIELDS = ("usage", "metrics", "timings", "speculation_summary")
"""Fields of the last chunks."""
TOKEN_TEXTS = {"vllm": {"logprobs": True}, "sglang": META_INFO}
"""Request fields that make a server return the texts of its tokens, or data on its drafting."""
SAMPLING = ("max_tokens", "temperature", "seed", "top_p")


@dataclass
class ServedResponse:
    """A response so far. `origins`: `known`, `unknown`, or `unclear` if the server's steps do not fit its tokens."""

    server: str = ""
    model: str = ""
    text: str = ""
    finish: str = ""
    records: list[dict[str, Any]] = field(default_factory=list)
    origins: str = "unknown"
    seconds: float = 0.0
    first_seconds: float = 0.0
    _fields: dict[str, Any] = field(default_factory=dict)
    _has_tokens: bool = True
    _decoder: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))
    started: float = field(default_factory=time.perf_counter)

    def add(self, chunk: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record of a streamed chunk, if it has tokens. Raises ValueError for an invalid chunk."""
        self._fields |= {name: chunk[name] for name in LAST_FIELDS if chunk.get(name)}
        choice = next(iter(chunk.get("choices") or []), {})
        self._fields["choices"] = [self._fields.get("choices", [{}])[0] | choice]
        self.finish = choice.get("finish_reason") or self.finish
        delta = choice.get("delta") or {}
        parts = [delta.get(key) for key in (*REASONING, "content")]
        content = "".join(text for text in parts if isinstance(text, str))
        record = self._speculoos_record(chunk) or self._record(content, choice.get("logprobs"))
        self.text += content
        if len(self.text) > MAX_CHARACTERS:
            raise ValueError("it is longer than a million characters")
        if record is None:
            return None
        self.seconds = time.perf_counter() - self.started
        self.first_seconds = self.first_seconds or self.seconds
        record["finish"] = self.finish or None
        self.records.append(record)
        return record

    def end(self) -> bool:
        """Give the tokens their origins; whether the records changed. Call it after the last chunk."""
        acceptance = acceptance_of_answer(self._fields)
        if self.origins == "known" or acceptance is None or acceptance.steps is None:
            return False
        sizes = [len(record["tokens"]) for record in self.records]
        steps = emitted_steps(sizes, acceptance.steps) if self._has_tokens and sum(sizes) == self.tokens else None
        self.origins = "known" if steps else "unclear"
        if steps:
            self.records = records_of_steps(self.records, steps)
        return bool(steps)

    @property
    def tokens(self) -> int:
        """The server's count, otherwise the number of tokens that were recognized."""
        count = (self._fields.get("usage") or {}).get("completion_tokens")
        return count if type(count) is int else sum(len(record["tokens"]) for record in self.records)

    def summary(self) -> dict[str, Any]:
        """Figures of the response: times as seen here, acceptance as published by the server."""
        decode, tokens = self.seconds - self.first_seconds, self.tokens
        acceptance = acceptance_of_answer(self._fields)
        summary = {
            "server": SERVERS.get(self.server, ""),
            "served_model": self.model,
            "origins": self.origins,
            "tokens": tokens,
            "finish": self.finish,
            "ms_prefill": round(self.first_seconds * 1000, 3),
            "ms_total": round(self.seconds * 1000, 3),
            "tokens_per_second": round(tokens / self.seconds, 3) if self.seconds else 0.0,
            "notices": [],
        }
        if decode > 0 and tokens > 1:
            summary["decode_tokens_per_second"] = round((tokens - 1) / decode, 3)
        if acceptance:
            depths = rates_of_steps(acceptance.steps) if acceptance.steps else acceptance.rates
            summary["mean_accepted_length"] = round(acceptance.tau, 4)
            summary["verifications"] = round(acceptance.verifications)
            summary["accepted"] = round(acceptance.accepted_tokens)
            summary["drafted"] = None if acceptance.drafted is None else round(acceptance.drafted)
            summary["acceptance_by_depth"] = depths
        return summary

    def _speculoos_record(self, chunk: Mapping[str, Any]) -> dict[str, Any] | None:
        """The record in a chunk of another Speculoos."""
        if self.server != "speculoos" or not isinstance(chunk.get("speculation"), dict):
            return None
        try:
            step, fields = Step.of_record(chunk["speculation"]), chunk["speculation"]
            record = step.record()
            for token, shown in zip(record["tokens"], fields["tokens"], strict=True):
                token |= {key: shown[key] for key in ("text", "origins") if key in shown}
            record["draft"]["texts"] = [str(text) for text in fields["draft"]["texts"]]
        except (SpeculoosError, KeyError, TypeError, ValueError):
            return None
        self.origins = "known"
        return record | {"index": len(self.records)}

    def _record(self, content: str, logprobs: Any) -> dict[str, Any] | None:
        texts = self._texts(content, logprobs)
        if not texts:
            return None
        ms = (time.perf_counter() - self.started - self.seconds) * 1000
        return chunk_record(len(self.records), "chunk" if self.records else "prefill", texts, ms)

    def _texts(self, content: str, logprobs: Any) -> list[str]:
        """The texts of the chunk's tokens, which concatenate to `content`; the text of special tokens is empty."""
        entries = (logprobs or {}).get("content") or []
        if not entries:
            self._has_tokens = self._has_tokens and not content
            return [content] if content else []
        parts = [bytes(entry.get("bytes") or entry["token"].encode()) for entry in entries]
        texts = [self._decoder.decode(part) for part in parts]
        if "".join(texts) == content:
            return texts
        texts, rest = [], content
        for part in parts:  # the end of the response may have special tokens
            text = part.decode("utf-8", "replace")
            texts.append(text if rest.startswith(text) else "")
            rest = rest.removeprefix(texts[-1])
        if rest or not self.finish:
            self._has_tokens = False
            return [content] if content else []
        return texts


def endpoint_named(settings: Settings, name: str) -> Endpoint:
    """The endpoint, from the settings as they are now. Raises NotFound."""
    if endpoint := settings.current().endpoints.get(name):
        return endpoint
    raise NotFound(f"There is no server {name!r} (any more): start it, or add it under Settings, Servers.")


async def stream_answer(
    settings: Settings,
    name: str,
    request: Mapping[str, Any],
    answer: ServedResponse,
    on_record: Callable[[dict[str, Any]], None],
) -> None:
    """Stream the response of endpoint `name` to a run's `request` into `answer`; `on_record` gets each chunk's record.

    Raises an error with one sentence that names the endpoint, without its key.
    """
    endpoint = endpoint_named(settings, name)
    try:
        await _stream(endpoint, request, answer, on_record)
    except (openai.OpenAIError, httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = redact(_sentence(endpoint, error), known_secrets(settings.current()))
        raise Unavailable(message) from None


async def _stream(
    endpoint: Endpoint,
    request: Mapping[str, Any],
    answer: ServedResponse,
    on_record: Callable[[dict[str, Any]], None],
) -> None:
    url = endpoint.urls[0]
    encrypted = url.lower().startswith("https:")  # loading the certificates takes longer than the request
    timeout = httpx.Timeout(endpoint.timeout, connect=min(CONNECT_SECONDS, endpoint.timeout))
    http_client = openai.DefaultAsyncHttpxClient(follow_redirects=False, verify=encrypted)
    key = endpoint.key or "none"
    async with openai.AsyncOpenAI(
        base_url=url, api_key=key, timeout=timeout, max_retries=0, http_client=http_client
    ) as client:
        answer.server, answer.model = await _server(client, endpoint)
        body = {**_body(request, answer), "stream": True, "stream_options": {"include_usage": True}}
        answer.started = time.perf_counter()
        post = client.post(
            "/chat/completions", cast_to=object, body=body, stream=True, stream_cls=openai.AsyncStream[object]
        )
        async with await post as chunks:
            async for chunk in chunks:
                if record := answer.add(chunk):
                    on_record(record)
    if not answer.finish:
        raise httpx.RemoteProtocolError("the end is missing")


async def _server(client: openai.AsyncOpenAI, endpoint: Endpoint) -> tuple[str, str]:
    """(a key of SERVERS or "", the model). Raises BadInput if neither the settings nor the server name a model."""
    try:
        models = (await client.models.list()).data
    except (openai.NotFoundError, openai.BadRequestError):
        models = []
    model = endpoint.model or next((model.id for model in models), "")
    if not model:
        raise BadInput(f"Server {endpoint.name} lists no model; set the model of its endpoint under Settings, Servers.")
    return server_key(models), model


def _body(request: Mapping[str, Any], answer: ServedResponse) -> dict[str, Any]:
    names = (*SAMPLING, *(["top_k"] if request.get("top_k") else []))
    fields = {name: request[name] for name in names if name in request}
    messages = [{"role": each["role"], "content": each["content"]} for each in request["messages"]]
    return {"model": answer.model, "messages": messages, **fields, **TOKEN_TEXTS.get(answer.server, {})}


def _sentence(endpoint: Endpoint, error: Exception) -> str:
    name = f"Server {endpoint.name}"
    if isinstance(error, openai.APITimeoutError | httpx.ReadTimeout):
        return f"{name} sent nothing for {endpoint.timeout:g} s: look at its log, or raise the endpoint's timeout."
    if isinstance(error, openai.APIConnectionError):
        return f"{name} does not respond at {endpoint.urls[0]}: start it, or correct its address under Settings."
    if isinstance(error, httpx.HTTPError):
        return f"{name} ended its response before it was complete: look at its log, then send again."
    if isinstance(error, openai.OpenAIError):
        return f"{name} refused the request: {short_error(error)}"
    return f"{name} sent a response that is no chat completion: check its address and its log."


class ServedTicket:
    """Runs a coroutine in a loop of its own; `cancel` ends it from any thread, closing its connection."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self._stop: Callable[[], object] = int

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Returns when `work` has ended or was cancelled. Raises its error."""

        async def main() -> None:
            self._stop = partial(asyncio.get_running_loop().call_soon_threadsafe, asyncio.current_task().cancel)
            if self.cancelled.is_set():
                work.close()
            else:
                await work

        with suppress(asyncio.CancelledError):
            asyncio.run(main())

    def cancel(self) -> bool:
        """False: the work may have begun."""
        self.cancelled.set()
        with suppress(RuntimeError):  # its loop is closed
            self._stop()
        return False
