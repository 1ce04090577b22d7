"""Making runs from what a page asks for: a chat's next turn, the plain measurement of a turn, a comparison.

A run row is written first, then its id is posted to the inference server; a refusal ends the row FAILED.
"""

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy.orm import Session

from app import drafting as drafts
from app import inference
from app.drafting import Drafting
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.names import split_model
from tracking.tables import Run, new_id

ID = re.compile(r"[0-9a-f]{32}")
PROMPT_LIMIT = 200_000
"""Most characters of one prompt."""
USUAL = Drafting()


@dataclass(frozen=True)
class TurnSampling:
    """How tokens are chosen. Temperature 0 is greedy; `seed` None draws a new one each time."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None
    system: str = ""
    top_p: float = 1.0
    top_k: int = 0

    def parameters(self) -> dict[str, Any]:
        """OpenAI's names and `top_k`, the system prompt and what narrows nothing left out."""
        options: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        narrowing = {"seed": self.seed, "top_p": self.top_p, "top_k": self.top_k}
        unused = {"seed": None, "top_p": 1.0, "top_k": 0}
        return options | {name: value for name, value in narrowing.items() if value != unused[name]}


def next_turn(
    settings: Settings,
    chat_id: str,
    model: str,
    prompt: str,
    sampling: TurnSampling,
    drafter: str = "",
    drafting: Drafting = USUAL,
    *,
    after: str | None = None,
) -> tuple[Run, str]:
    """Ask `model` the next question of a chat ("" begins one) and start answering. Returns the run, and why it
    could not start ("" when it did). `after` is the turn it follows, "" none: the last one unless told otherwise.

    Raises BadInput for an empty prompt, a tree that this draft cannot draft, or while the chat's last answer is still
    coming.
    """
    prompt = _checked(prompt)
    check_whole(sampling.system, "The system prompt")
    check_whole(model + drafter, "The name of the model")
    with writing(settings) as opened:
        speculation = _speculation(opened, model, drafter, drafting, sampling)
        turns = _ended(runs.group_runs(opened, chat_id) if ID.fullmatch(chat_id) else [])
        way = _way(turns, after)
        messages = [*history(way, sampling.system, before(turns)), {"role": "user", "content": prompt}]
        request = {**_request(messages, sampling, speculation), chats.KEY: _place(turns, way)}
        group = turns[0].group_id if turns else new_id()
        run = runs.create_run(opened, "chat", model, request, group, way[-1].position + 1 if way else 0)
    return run, start(settings, run.id)


def continue_turn(settings: Settings, run_id: str) -> dict[str, Any]:
    """Go on with an answer that was cut or stopped, token by token where it ended, as the next turn of its chat.

    Raises NotFound, or Conflict when it cannot be gone on with.
    """
    with writing(settings) as opened:
        turn = runs.get_run(opened, run_id)
        turns = _ended(runs.group_runs(opened, str(turn.group_id)))
        cut = turn.state == "CANCELLED" or turn.summary.get("finish") == "length"
        if turn.kind != "chat" or not turn.text or not cut:
            raise Conflict("This answer ended by itself; there is nothing to go on with. Ask the next question.")
        place = {**_place(turns, [turn]), "continues": turn.id}
        request = {**turn.request, chats.KEY: place}
        run = runs.create_run(opened, "chat", turn.model, request, turn.group_id, turn.position + 1)
    inference.start(settings, run.id)
    return runs.run_view(run)


def _ended(turns: list[Run]) -> list[Run]:
    if any(turn.state not in runs.ENDED for turn in turns):
        raise BadInput("The last answer is still coming; wait for its end or stop it first.")
    return turns


def _way(turns: list[Run], after: str | None) -> list[Run]:
    """The turns before the new one."""
    if after is None:
        return chats.path(turns)
    ids = chats.line(after, chats.parents(turns))
    return [next(turn for turn in turns if turn.id == turn_id) for turn_id in ids]


def _place(turns: list[Run], way: list[Run]) -> dict[str, str]:
    """What a new turn says of its place in the chat."""
    named = {"name": name} if turns and (name := chats.told(turns[0]).get("name")) else {}
    return {"after": way[-1].id if way else "", **named}


def before(turns: list[Run]) -> list[dict[str, str]]:
    """What stood before a chat's first question: nothing, or the turns of the prompt that was shown there, an
    evaluation's or a recording's; with its own system prompt, which no field of the page says."""
    if not turns:
        return []
    shown = turns[0].request["messages"][:-1]
    return [m for m in shown if m["role"] != "system" or chats.KEY not in turns[0].request]


def history(turns: list[Run], system: str = "", opening: Sequence[dict[str, str]] = ()) -> list[dict[str, str]]:
    """The messages so far, after those of `opening`: each answered question with its whole answer; failed turns are
    left out. A system prompt of the page goes before one of the opening's."""
    system = system.strip() or next((m["content"] for m in opening if m["role"] == "system"), "")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [dict(m) for m in opening if m["role"] != "system"]
    for turn in turns:
        if turn.state == "FAILED" or not turn.text:
            continue
        if chats.told(turn).get("continues"):
            messages.pop()
        else:
            messages.append(turn.request["messages"][-1])
        messages.append({"role": "assistant", "content": chats.answer(turn, turns)})
    return messages


def remove_turn(settings: Settings, run_id: str) -> None:
    """Take an ended run of a chat out of the database, with what was measured for it.

    Raises NotFound, or Conflict while it goes on.
    """
    with writing(settings) as opened:
        run = runs.get_run(opened, run_id)
        if run.state not in runs.ENDED:
            raise Conflict("This answer is still coming; stop it first.")
        if run.kind != "chat":
            raise Conflict("This answer belongs to a comparison or was measured for another; delete that one.")
        if run_id in chats.parents(runs.group_runs(opened, str(run.group_id))).values():
            raise Conflict("Other turns follow this one; remove those first.")
        for measured in runs.group_runs(opened, run_id):
            runs.delete_run(opened, measured.id)
        runs.delete_run(opened, run_id)


def remove_comparison(settings: Settings, group_id: str) -> None:
    """Take all columns of an ended comparison out of the database. Raises NotFound, or Conflict while one goes on."""
    with writing(settings) as opened:
        columns = [run for run in runs.group_runs(opened, group_id) if run.kind == "compare"]
        if not columns:
            raise NotFound(f"There is no comparison {group_id!r}.")
        if any(run.state not in runs.ENDED for run in columns):
            raise Conflict("This comparison is still being measured; stop it first.")
        for run in columns:
            runs.delete_run(opened, run.id)


def measure_plain(settings: Settings, run_id: str, again: bool = False) -> dict[str, Any]:
    """Answer the same messages with the base alone, measured alone. Its group is the run it is measured for.

    A measurement that is there already is returned, unless it has ended and `again` asks for another.
    """
    with writing(settings) as opened:
        turn = runs.get_run(opened, run_id)
        measured = [r for r in runs.group_runs(opened, run_id) if r.state not in ("FAILED", "CANCELLED")]
        if measured and not (again and measured[-1].state in runs.ENDED):
            return runs.run_view(measured[-1])
        request = {k: v for k, v in turn.request.items() if k != "speculation"}
        run = runs.create_run(opened, "compare", split_model(turn.model)[0], request, group_id=run_id)
    inference.start(settings, run.id)
    return runs.run_view(run)


def new_comparison(
    settings: Settings,
    targets: list[tuple[str, str]],
    prompt: str,
    sampling: TurnSampling,
    drafting: Drafting = USUAL,
) -> tuple[str, str]:
    """The same prompt for 2 to 4 (model, drafter) targets, one column each, measured from the first to the last or,
    every second time, the other way round; those that draft do as `drafting` says. Returns the comparison's id, and why
    it could not start ("" when it did)."""
    if not 2 <= len(targets) <= 4:
        raise BadInput("Choose two to four targets to compare.")
    check_whole(sampling.system, "The system prompt")
    check_whole("".join(map("".join, targets)), "The name of a model")
    system = [{"role": "system", "content": sampling.system.strip()}] if sampling.system.strip() else []
    messages = [*system, {"role": "user", "content": _checked(prompt)}]
    if sampling.temperature and sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbelow(2**31))  # one for all columns
    with writing(settings) as opened:
        backwards = runs.next_backwards(opened)
        asked = [(m, _speculation(opened, m, d, drafting, sampling)) for m, d in targets]
        columns = runs.create_comparison(
            opened, [(m, _request(messages, sampling, each)) for m, each in asked], backwards
        )
    reason = start(settings, columns[0].id)
    if reason:
        with writing(settings) as opened:
            for run in columns[1:]:
                runs.fail_run(opened, run.id, reason)
    return str(columns[0].group_id), reason


def measure_again(settings: Settings, run_id: str) -> dict[str, Any]:
    """Measure a column anew that was stopped or failed: another run takes its place. Raises NotFound, Conflict."""
    with writing(settings) as opened:
        old = runs.get_run(opened, run_id)
        if old.kind != "compare" or old.state not in ("FAILED", "CANCELLED"):
            raise Conflict("This column is measured, or still waits for its turn.")
        run = runs.create_run(opened, old.kind, old.model, old.request, old.group_id, old.position)
        runs.delete_run(opened, old.id)
    inference.start(settings, run.id)
    return runs.run_view(run)


def chat_of(settings: Settings, chat_id: str) -> list[Run]:
    """The turns of a chat, for its page; empty when the id is unknown."""
    if not ID.fullmatch(chat_id):
        return []
    with reading(settings) as opened:
        return runs.group_runs(opened, chat_id)


def start(settings: Settings, run_id: str) -> str:
    """Have a run answered; why it could not start, "" when it did."""
    try:
        inference.start(settings, run_id)
    except SpeculoosError as error:
        return str(error)
    return ""


def _speculation(
    opened: Session, model: str, drafter: str, drafting: Drafting, sampling: TurnSampling
) -> dict[str, Any]:
    """What a request says of drafting; nothing for a base alone, which drafts nothing. Raises BadInput."""
    drafted = bool(drafter or split_model(model)[1])
    if drafted and drafting != USUAL:
        drafts.check(opened, drafting, model, drafter, sampling.temperature)
    return drafting.speculation(drafter) if drafted else {}


def _request(messages: list[dict[str, str]], sampling: TurnSampling, speculation: dict[str, Any]) -> dict[str, Any]:
    request = {"messages": messages, **sampling.parameters()}
    return {**request, "speculation": speculation} if speculation else request


def _checked(prompt: str) -> str:
    if not (prompt or "").strip():
        raise BadInput("Write a question first.")
    if len(prompt) > PROMPT_LIMIT:
        raise BadInput(f"The prompt is longer than {PROMPT_LIMIT:,} characters; shorten it.")
    check_whole(prompt, "The prompt")
    return prompt


def check_whole(text: str, what: str) -> None:
    """Half a character can neither be stored nor read by a model. Raises BadInput."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = f"a lone surrogate, after {error.start} characters"
        raise BadInput(f"{what} holds half of a character ({place}); write it again.") from None
