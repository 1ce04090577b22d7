"""Making runs from what a page asks for: a chat's next turn, the plain measurement of a turn, a comparison.

A run row is written first, then its id is posted to the inference server; a refusal ends the row FAILED.
"""

import re
import secrets
from dataclasses import dataclass, replace
from typing import Any

from app import inference
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError
from speculoos.settings import Settings
from tracking import runs
from tracking.db import reading, writing
from tracking.names import split_model
from tracking.tables import Run, new_id

ID = re.compile(r"[0-9a-f]{32}")
PROMPT_LIMIT = 200_000
"""Most characters of one prompt."""
LOOKUP = "ngram"
"""The drafter that needs no checkpoint: it copies from the text so far."""


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; `seed` None draws a new one each time."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None
    system: str = ""

    def parameters(self) -> dict[str, Any]:
        """OpenAI's names, the system prompt left out."""
        options: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        return options if self.seed is None else {**options, "seed": self.seed}


def next_turn(
    settings: Settings, chat_id: str, model: str, prompt: str, sampling: Sampling, drafter: str = ""
) -> tuple[Run, str]:
    """Ask `model` the next question of a chat ("" begins one) and start answering. Returns the run, and why it
    could not start ("" when it did).

    Raises BadInput for an empty prompt, or while the chat's last answer is still coming.
    """
    prompt = _checked(prompt)
    _check_whole(sampling.system, "The system prompt")
    _check_whole(model + drafter, "The name of the model")
    with writing(settings) as opened:
        turns = runs.group_runs(opened, chat_id) if ID.fullmatch(chat_id) else []
        if turns and turns[-1].state not in runs.ENDED:
            raise BadInput("The last answer is still coming; wait for its end or stop it first.")
        messages = [*history(turns, sampling.system), {"role": "user", "content": prompt}]
        request = _request(messages, sampling, drafter)
        group = turns[0].group_id if turns else new_id()
        position = turns[-1].position + 1 if turns else 0
        run = runs.create_run(opened, "chat", model, request, group, position)
    return run, _start(settings, run.id)


def history(turns: list[Run], system: str = "") -> list[dict[str, str]]:
    """The messages so far: each answered question with its answer; failed turns are left out."""
    messages = [{"role": "system", "content": system.strip()}] if system.strip() else []
    for turn in turns:
        if turn.state != "FAILED" and turn.text:
            messages += [turn.request["messages"][-1], {"role": "assistant", "content": turn.text}]
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


def measure_plain(settings: Settings, run_id: str) -> dict[str, Any]:
    """Answer the same messages with the base alone, measured alone. Its group is the run it is measured for."""
    with writing(settings) as opened:
        turn = runs.get_run(opened, run_id)
        if measured := [r for r in runs.group_runs(opened, run_id) if r.state not in ("FAILED", "CANCELLED")]:
            return runs.run_view(measured[-1])
        request = {k: v for k, v in turn.request.items() if k != "speculation"}
        run = runs.create_run(opened, "compare", split_model(turn.model)[0], request, group_id=run_id)
    inference.start(settings, run.id)
    return runs.run_view(run)


def new_comparison(
    settings: Settings, targets: list[tuple[str, str]], prompt: str, sampling: Sampling
) -> tuple[str, str]:
    """The same prompt for 2 to 4 (model, drafter) targets, one column each. Returns the comparison's id, and why it
    could not start ("" when it did)."""
    if not 2 <= len(targets) <= 4:
        raise BadInput("Choose two to four targets to compare.")
    _check_whole(sampling.system, "The system prompt")
    _check_whole("".join(map("".join, targets)), "The name of a model")
    system = [{"role": "system", "content": sampling.system.strip()}] if sampling.system.strip() else []
    messages = [*system, {"role": "user", "content": _checked(prompt)}]
    if sampling.temperature and sampling.seed is None:
        sampling = replace(sampling, seed=secrets.randbelow(2**31))  # one for all columns
    with writing(settings) as opened:
        columns = runs.create_comparison(opened, [(m, _request(messages, sampling, d)) for m, d in targets])
    reason = _start(settings, columns[0].id)
    if reason:
        with writing(settings) as opened:
            for run in columns[1:]:
                runs.fail_run(opened, run.id, reason)
    return str(columns[0].group_id), reason


def chat_of(settings: Settings, chat_id: str) -> list[Run]:
    """The turns of a chat, for its page; empty when the id is unknown."""
    if not ID.fullmatch(chat_id):
        return []
    with reading(settings) as opened:
        return runs.group_runs(opened, chat_id)


def _start(settings: Settings, run_id: str) -> str:
    try:
        inference.start(settings, run_id)
    except SpeculoosError as error:
        return str(error)
    return ""


def _request(messages: list[dict[str, str]], sampling: Sampling, drafter: str) -> dict[str, Any]:
    request = {"messages": messages, **sampling.parameters()}
    return {**request, "speculation": {"drafter": drafter}} if drafter else request


def _checked(prompt: str) -> str:
    if not (prompt or "").strip():
        raise BadInput("Write a question first.")
    if len(prompt) > PROMPT_LIMIT:
        raise BadInput(f"The prompt is longer than {PROMPT_LIMIT:,} characters; shorten it.")
    _check_whole(prompt, "The prompt")
    return prompt


def _check_whole(text: str, what: str) -> None:
    """Half a character can neither be stored nor read by a model."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        place = f"a lone surrogate, after {error.start} characters"
        raise BadInput(f"{what} holds half of a character ({place}); write it again.") from None
