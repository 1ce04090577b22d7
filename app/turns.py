"""Creates runs: the next turn of a chat, the plain measurement of a turn, a comparison.

The run row is written first, then its id is posted to the inference server; an error response ends the row FAILED.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from app import drafting, inference
from app.drafting import TurnOptions
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError
from speculoos.settings import Settings
from tracking import chats, queries, runs
from tracking.db import reading, writing
from tracking.names import server_of, split_model
from tracking.tables import Base, Checkpoint, Evaluation, Run, new_id

ID = re.compile(r"[0-9a-f]{32}")
PROMPT_LIMIT = 200_000  # maximum number of characters of a prompt
PROMPT_NOT_STORED = "This prompt is not stored with the evaluation. Measure again, or enter it in the Playground."


def next_turn(
    settings: Settings,
    chat_id: str,
    model: str,
    prompt: str,
    options: TurnOptions,
    drafter: str = "",
    *,
    after: str | None = None,
) -> tuple[Run, str]:
    """Create and start the next turn of a chat ("" starts a new chat). Returns the run, and an error message or "".
    `after` is the turn that it follows ("": none; None: the last one).

    Raises BadInput for an empty prompt, a tree that the draft does not support, or while the chat's last turn is
    running.
    """
    prompt = _checked(prompt)
    check_surrogates(options.system, "The system prompt")
    check_surrogates(model + drafter, "The name of the model")
    with writing(settings) as session:
        speculation = _speculation(settings, session, model, drafter, options)
        turns = _ended(runs.group_runs(session, chat_id) if ID.fullmatch(chat_id) else [])
        path = chats.path_after(turns, after)
        earlier = chats.history(path, options.system, chats.opening_messages(turns))
        messages = [*earlier, {"role": "user", "content": prompt}]
        request = {**_request(messages, options, speculation), chats.KEY: chats.new_fields(turns, path)}
        group = turns[0].group_id if turns else new_id()
        run = runs.create_run(session, "chat", model, request, group, path[-1].position + 1 if path else 0)
    return run, start(settings, run.id)


def continue_turn(settings: Settings, run_id: str) -> dict[str, Any]:
    """Continue a truncated or stopped response from its last token, as the next turn of its chat.

    Raises NotFound, or Conflict if the response cannot be continued.
    """
    with writing(settings) as session:
        turn = runs.get_run(session, run_id)
        turns = _ended(runs.group_runs(session, str(turn.group_id)))
        cut = turn.state == "CANCELLED" or turn.summary.get("finish") == "length"
        if server_of(turn.model):
            raise Conflict("A server's response cannot be continued. Send the next prompt.")
        if turn.kind != "chat" or not turn.text or not cut:
            raise Conflict("This response is complete and cannot be continued. Send the next prompt.")
        chat_fields = {**chats.new_fields(turns, [turn]), "continues": turn.id}
        request = {**turn.request, chats.KEY: chat_fields}
        run = runs.create_run(session, "chat", turn.model, request, turn.group_id, turn.position + 1)
    inference.start(settings, run.id)
    return runs.run_view(run)


def _ended(turns: list[Run]) -> list[Run]:
    if any(turn.state not in runs.ENDED for turn in turns):
        raise BadInput("The last response is still being generated; wait for it or stop it first.")
    return turns


def measure_plain(settings: Settings, run_id: str, again: bool = False) -> dict[str, Any]:
    """Run the same messages with plain decoding of the base model. The new run's group is the run it is measured for.

    Returns an existing measurement, unless it has ended and `again` is set.
    """
    with writing(settings) as session:
        turn = runs.get_run(session, run_id)
        if server_of(turn.model):
            raise Conflict("A server's plain speed is not known here. Compare it with a server without a draft.")
        measured = [r for r in runs.group_runs(session, run_id) if r.state not in ("FAILED", "CANCELLED")]
        if measured and not (again and measured[-1].state in runs.ENDED):
            return runs.run_view(measured[-1])
        request = {k: v for k, v in turn.request.items() if k != "speculation"}
        run = runs.create_run(session, "compare", split_model(turn.model)[0], request, group_id=run_id)
    inference.start(settings, run.id)
    return runs.run_view(run)


def new_comparison(
    settings: Settings, targets: list[tuple[str, str]], prompt: str, options: TurnOptions
) -> tuple[str, str]:
    """Run a prompt on 2 to 4 (model, drafter) targets, one column each, measured one after another in order or, every
    second time, in reverse order. Returns the comparison's id, and an error message or ""."""
    if not 2 <= len(targets) <= 4:
        raise BadInput("Choose two to four targets to compare.")
    check_surrogates(options.system, "The system prompt")
    check_surrogates("".join(map("".join, targets)), "The name of a model")
    messages = [*chats.history([], options.system), {"role": "user", "content": _checked(prompt)}]
    if options.temperature and options.seed is None:
        options = replace(options, seed=secrets.randbelow(2**31))  # the same seed for all columns
    with writing(settings) as session:
        backwards = runs.next_backwards(session)
        speculations = [(m, _speculation(settings, session, m, d, options)) for m, d in targets]
        requests = [(m, _request(messages, options, speculation)) for m, speculation in speculations]
        columns = runs.create_comparison(session, requests, backwards)
    reason = start(settings, columns[0].id)
    if reason:
        with writing(settings) as session:
            for run in columns[1:]:
                runs.fail_run(session, run.id, reason)
    return str(columns[0].group_id), reason


def chat_of(settings: Settings, chat_id: str) -> list[Run]:
    """The turns of a chat; empty if the id is unknown."""
    with reading(settings) as session:
        return runs.group_runs(session, chat_id) if ID.fullmatch(chat_id) else []


def start(settings: Settings, run_id: str) -> str:
    """Start a run; returns an error message, or "" on success."""
    try:
        inference.start(settings, run_id)
    except SpeculoosError as error:
        return str(error)
    return ""


def _speculation(
    settings: Settings, session: Session, model: str, drafter: str, options: TurnOptions
) -> dict[str, Any]:
    """Speculation options of a request; {} for plain decoding and for servers. Raises BadInput."""
    if server := server_of(model):
        if server not in settings.current().endpoints:
            raise BadInput(f"There is no server {server!r} (any more): start it, or add it under Settings, Servers.")
        return {}
    if not (drafter or split_model(model)[1]):
        return {}
    if options.speculation():
        drafting.check(session, options, model, drafter)
    return options.speculation(drafter)


def _request(messages: list[dict[str, str]], options: TurnOptions, speculation: dict[str, Any]) -> dict[str, Any]:
    request = {"messages": messages, **options.parameters()}
    return {**request, "speculation": speculation} if speculation else request


def _checked(prompt: str) -> str:
    if not (prompt or "").strip():
        raise BadInput("Enter a prompt first.")
    if len(prompt) > PROMPT_LIMIT:
        raise BadInput(f"The prompt is longer than {PROMPT_LIMIT:,} characters; shorten it.")
    check_surrogates(prompt, "The prompt")
    return prompt


def check_surrogates(text: str, what: str) -> None:
    """Raises BadInput for a text with an unpaired surrogate, which can be neither stored nor tokenized."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"an unpaired surrogate after {error.start} characters"
        raise BadInput(f"{what} contains {where}; enter it again.") from None


def run_again(settings: Settings, evaluation_id: str, number: str) -> tuple[str, str]:
    """Run a prompt of an evaluation in the Playground, to show its steps with p and q of every candidate. A greedy
    response is the same; the speed is not comparable. (id of the chat, error message or "")

    Raises NotFound or BadInput.
    """
    with writing(settings) as session:
        row = session.get(Evaluation, evaluation_id)
        if row is None:
            raise NotFound("This evaluation does not exist: it was deleted, or the URL is wrong.")
        request = request_of_prompt(row, number)
        base, draft = session.get(Base, row.base_id or ""), session.get(Checkpoint, row.checkpoint_id or "")
        if base is None or (row.checkpoint_id and draft is None):
            raise NotFound("The base model or the draft of this evaluation was deleted.")
        model = queries.model_name(session, base.id, row.checkpoint_id)
        run = runs.create_run(session, "chat", model, request, new_id())
    return str(run.group_id), start(settings, run.id)


def request_of_prompt(row: Evaluation, number: str) -> dict[str, Any]:
    """The evaluation's request for a prompt: messages, sampling, speculation. Raises BadInput if it is not stored."""
    prompts = (row.result or {}).get("per_prompt") or []
    prompt = prompts[int(number)] if number.isdecimal() and int(number) < len(prompts) else {}
    if not isinstance(prompt, Mapping) or not prompt.get("messages"):
        raise BadInput(PROMPT_NOT_STORED)
    config = row.config or {}
    sampling = {"max_tokens": row.result.get("max_tokens") or 128, "temperature": row.temperature, "seed": 0}
    if row.top_p != 1:
        sampling["top_p"] = row.top_p
    speculation = {**(config.get("drafting") or {}), "probabilities": True}
    return {"messages": prompt["messages"], **sampling, "speculation": speculation}
