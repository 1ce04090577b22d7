"""Evaluate a server: the speed seen by a client, and the acceptance published by the server. Does not import torch.

Questions are sent one at a time, so that the difference of the server's counters belongs to one answer. Other clients
disturb the counters, but not servers that return metrics with each answer.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import openai

from corpus.conversations import Conversation, make_conversation_from_row, row_seed
from corpus.endpoints import EndpointPool, short_error
from evaluation.load import LoadSide, measure_loads
from evaluation.published import META_INFO, PublishedAcceptance, acceptance_of_answer, scrape, undrafted_answer
from evaluation.served_figures import ServedAnswer, breakdown, fill_undrafted, identical, metrics
from speculoos.errors import BadInput, Unavailable
from speculoos.loads import stops_paying_at
from speculoos.reporting import Reporter, check_stop
from speculoos.settings import Endpoint

SERVERS = {
    "vllm": "vLLM",
    "llamacpp": "llama.cpp",
    "sglang": "SGLang",
    "tensorrt_llm": "TensorRT-LLM",
    "speculoos": "Speculoos",
}
"""{`owned_by` of a server's models: display name}."""
NO_ACCEPTANCE = "This server does not report its acceptance; only its speed is measured."
FAILED_IN_A_ROW = 3


@dataclass(frozen=True)
class ServedRequest:
    """Sampling options of all questions."""

    max_tokens: int = 128
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0


@dataclass
class _Session:
    """State of one server's evaluation."""

    endpoint: Endpoint
    drafting: EndpointPool
    plain: EndpointPool | None
    options: ServedRequest
    reporter: Reporter
    server: str = ""
    endpoint_name: str = ""
    """Of the endpoint that got the last request."""
    counters_before: PublishedAcceptance | None = None
    """The server's counters after the last answer; None if it has none."""
    answers: list[ServedAnswer] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)


def evaluate_served(
    endpoint: Endpoint,
    questions: Sequence[dict[str, Any]],
    reporter: Reporter,
    options: ServedRequest | None = None,
    *,
    model: str = "",
    plain_model: str = "",
    plain_endpoint: Endpoint | None = None,
    concurrency: Sequence[int] = (),
) -> dict[str, Any]:
    """Send all questions to the first address of `endpoint`. The result has the keys of
    `evaluation.acceptance.evaluate`, None for unpublished metrics, and `source` (endpoint, model, and the source of the
    acceptance: `answers`, `counters` or ""). The same base without a draft is `plain_model`, on `plain_endpoint` if it
    is given. `concurrency`: numbers of concurrent requests at which the prompts are sent again; the result then has
    `loads` (see `evaluation.load.measure_loads`) and `stops_paying_at` (`speculoos.loads`).

    Raises Unavailable when it does not answer, BadInput without a question, Cancelled between prompts.
    """
    if not questions:
        raise BadInput("There is no question to evaluate on.")
    endpoint, options = replace(endpoint, url=endpoint.urls[0]), options or ServedRequest()
    undrafted_endpoint = replace(plain_endpoint, url=plain_endpoint.urls[0]) if plain_endpoint else endpoint
    plain = EndpointPool([undrafted_endpoint], plain_model) if plain_model or plain_endpoint else None
    for each in (endpoint, undrafted_endpoint) if concurrency else ():
        if each.requests_per_minute:
            raise BadInput(f"{each.name} has requests_per_minute in settings.toml, which limits every load; remove it.")
    total = len(questions) * (1 + len(concurrency))
    session = _Session(endpoint, EndpointPool([endpoint], model), plain, options, reporter)
    session.server = _server(session)
    _warm_up(session)
    session.counters_before = scrape(endpoint)
    for number, row in enumerate(questions, 1):
        _question(session, row)
        reporter.progress(number, total, "questions")
        check_stop(reporter)
    if not session.answers:
        raise Unavailable(f"{session.endpoint_name} answered no question: {session.failed[0]['reason']}")
    result = _result(session)
    if not concurrency:
        return result
    loads = measure_loads(
        LoadSide(session.drafting.servers[0], partial(scrape, endpoint) if session.counters_before else None),
        LoadSide(plain.servers[0]) if plain else None,
        [_fields(session, answer.messages, answer.id, answer.turn) for answer in session.answers],
        concurrency,
        reporter,
        lambda done: reporter.progress(round(len(questions) * (1 + done)), total, "questions"),
    )
    return {**result, "loads": loads, "stops_paying_at": stops_paying_at(loads)}


def _server(session: _Session) -> str:
    """A key of SERVERS, "" for an unknown server."""
    try:
        models = session.drafting.servers[0].client.models.list().data
    except openai.OpenAIError as error:
        session.reporter.log(f"{session.endpoint.name} does not list its models ({short_error(error)}).", "warning")
        return ""
    return server_key(models)


def server_key(models: Iterable[Any]) -> str:
    """A key of SERVERS from the models that a server lists, "" for an unknown server."""
    owners = (str(getattr(model, "owned_by", "") or "").lower().replace("-", "_") for model in models)
    return next((owner for owner in owners if owner in SERVERS), "")


def _warm_up(session: _Session) -> None:
    """One unmeasured request per model, to open connections and to trigger lazy loading. Errors are ignored here and
    reported for the first question."""
    for pool in (session.drafting, session.plain):
        if pool is not None:
            with suppress(openai.OpenAIError, ValueError):
                _complete(session, pool, Conversation("warm-up", ["Say hello."]))


def _question(session: _Session, row: dict[str, Any]) -> None:
    """Measure all turns of one question. A rejected question is logged and omitted."""
    chat = make_conversation_from_row(row)
    try:
        while not chat.complete:
            _turn(session, chat)
            check_stop(session.reporter)
    except (openai.OpenAIError, ValueError) as error:  # ValueError: an invalid response
        reason = short_error(error)
        session.failed.append({"id": chat.id, "reason": reason})
        session.reporter.log(f"{chat.id}: left out, {reason}", "warning")
        if not session.answers and len(session.failed) >= FAILED_IN_A_ROW:
            raise Unavailable(
                f"{session.endpoint_name} does not answer: {reason}", "See its log, then retry."
            ) from None


def _turn(session: _Session, chat: Conversation) -> None:
    text, tokens, seconds, answer = _complete(session, session.drafting, chat)
    from_answer, counted = acceptance_of_answer(answer), _from_counters(session)
    acceptance = from_answer.with_depths(counted) if from_answer else counted
    acceptance_source = ("answers" if from_answer else "counters") * bool(acceptance)
    answered = ServedAnswer(chat.category, tokens, seconds, acceptance, acceptance_source)
    answered.if_undrafted = undrafted_answer(answer)
    answered.id, answered.turn, answered.messages = chat.id, len(chat.answers), chat.messages()
    if session.plain:
        plain, answered.plain_tokens, answered.plain_seconds, _ = _complete(session, session.plain, chat)
        answered.same_as_plain = plain == text if session.options.temperature == 0 else None
        session.counters_before = scrape(session.endpoint) if session.counters_before else None
    session.answers.append(answered)
    chat.answers.append(text)
    chat.finish.append("stop")


def _complete(session: _Session, pool: EndpointPool, chat: Conversation) -> tuple[str, int, float, dict[str, Any]]:
    """(text, tokens, seconds of the successful request, whole response)."""
    session.endpoint_name = pool.servers[0].endpoint.name
    fields = _fields(session, chat.messages(), chat.id, len(chat.answers))
    reply, _ = pool.create_completion(threading.Event(), **fields)
    return reply.text, reply.tokens, reply.seconds, reply.body


def _fields(session: _Session, messages: list[dict[str, str]], chat_id: str, turn: int) -> dict[str, Any]:
    """The fields of a chat completion."""
    options = session.options
    extra: dict[str, Any] = {"top_p": options.top_p} if options.top_p < 1 else {}
    if options.temperature > 0:
        extra["seed"] = row_seed(options.seed, chat_id, turn) & 0x7FFFFFFF
    if session.server == "sglang":
        extra["extra_body"] = META_INFO
    return {"messages": messages, "max_tokens": options.max_tokens, "temperature": options.temperature, **extra}


def _from_counters(session: _Session) -> PublishedAcceptance | None:
    if session.counters_before is None:
        return None
    counters_before, session.counters_before = session.counters_before, scrape(session.endpoint)
    difference = session.counters_before - counters_before if session.counters_before else None
    return difference if difference and difference.is_known else None


def _result(session: _Session) -> dict[str, Any]:
    answers, options = session.answers, session.options
    fill_undrafted(answers)
    sources = ", ".join(sorted({a.acceptance_source for a in answers} - {""}))
    if not sources:
        session.reporter.log(NO_ACCEPTANCE, "warning")
    categories = sorted({a.category for a in answers if a.category})
    return {
        **metrics(answers),
        **breakdown(answers),
        "identical_to_plain": identical(answers),
        "identical_prompts": sum(answer.same_as_plain is True for answer in answers),
        "per_category": {name: metrics([a for a in answers if a.category == name]) for name in categories},
        "failed": session.failed[:100],
        "max_tokens": options.max_tokens,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "source": {**session.drafting.config(), "server": SERVERS.get(session.server, ""), "by": sources},
    }
