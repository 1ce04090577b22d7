"""Chats: the runs of a group as a tree of turns, with their names and search.

Under the key `chat`, a turn's request stores the id of the previous turn (`after`, "" for none), the id of the turn
whose response it continues (`continues`), and the chat's name (`name`). A repeated or edited question becomes a
sibling, so that no turn is lost. Turns stored by older versions have no such key; each follows the previous one.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Text, cast, delete, func, or_, select
from sqlalchemy.orm import Session

from speculoos.errors import Conflict, NotFound
from tracking import runs
from tracking.tables import Run, RunStep

KEY = "chat"
KIND = "chat"
INCOMPLETE_CHARACTER = "\ufffd"  # decoded text of an incomplete character at the end of a truncated response
MAX_SEARCHED = 500  # maximum number of turns that a search reads from the database
TITLE_LENGTH = 90


@dataclass(frozen=True)
class Chat:
    """A row of the list. `title` is the chat's name or the start of its first question."""

    id: str
    title: str
    model: str
    turns: int
    at: datetime

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}


def chat_fields(turn: Run) -> dict[str, Any]:
    return turn.request.get(KEY) or {}


def question(turn: Run) -> str:
    return next((m["content"] for m in reversed(turn.request.get("messages") or []) if m["role"] == "user"), "")


def title(turn: Run) -> str:
    """The title of the chat whose first turn is `turn`."""
    return chat_fields(turn).get("name") or " ".join(question(turn).split())[:TITLE_LENGTH] or "…"


def previous_turns(turns: Sequence[Run]) -> dict[str, str]:
    """Id of the previous turn of each turn, "" if none; `turns` are ordered as in runs.group_runs."""
    previous: dict[str, str] = {}
    before = ""
    for turn in turns:
        if "after" in chat_fields(turn):
            previous[turn.id] = chat_fields(turn)["after"] if chat_fields(turn)["after"] in previous else ""
        else:
            previous[turn.id], before = before, turn.id
    return previous


def turn_path_ids(turn_id: str, previous: dict[str, str]) -> list[str]:
    """Ids from the first turn to `turn_id`; empty if it does not exist."""
    ids = []
    while turn_id in previous:
        ids.append(turn_id)
        turn_id = previous[turn_id]
    return ids[::-1]


def turns_on_path(turns: Sequence[Run], chosen: str = "") -> list[Run]:
    """The turns on the path from the root to the newest turn, or to the newest turn below `chosen`."""
    previous, by_id = previous_turns(turns), {turn.id: turn for turn in turns}
    lines = [turn_path_ids(turn.id, previous) for turn in turns]
    paths = [ids for ids in lines if chosen in ids] or lines
    newest = max(paths, key=lambda ids: (by_id[ids[-1]].created_at, len(ids)), default=[])
    return [by_id[turn_id] for turn_id in newest]


def sibling_turns(turns: Sequence[Run]) -> dict[str, list[str]]:
    """Ids of each turn and its siblings (alternatives at the same position), oldest first, by turn id."""
    previous = previous_turns(turns)
    order = sorted(turns, key=lambda turn: turn.created_at)
    return {turn.id: [other.id for other in order if previous[other.id] == previous[turn.id]] for turn in turns}


def whole_response(turn: Run, path: Sequence[Run]) -> str:
    """The whole response whose last part is `turn`; the earlier parts are on `path`."""
    parts = [turn.text]
    before = {other.id: other for other in path}
    while (turn := before.get(chat_fields(turn).get("continues", ""))) is not None:
        parts.insert(0, turn.text.rstrip(INCOMPLETE_CHARACTER))
    return "".join(parts)


def path_after(turns: list[Run], after: str | None) -> list[Run]:
    """The turns before a new one that follows the turn `after` ("": none; None: the last one)."""
    if after is None:
        return turns_on_path(turns)
    ids = turn_path_ids(after, previous_turns(turns))
    return [next(turn for turn in turns if turn.id == turn_id) for turn_id in ids]


def new_fields(turns: list[Run], path: list[Run]) -> dict[str, str]:
    """The chat fields of a new turn's request: its predecessor, and the chat's name if set."""
    named = {"name": name} if turns and (name := chat_fields(turns[0]).get("name")) else {}
    return {"after": path[-1].id if path else "", **named}


def opening_messages(turns: list[Run]) -> list[dict[str, str]]:
    """The messages before a chat's first prompt: none, or the earlier turns of a prompt from an evaluation or a
    recording, with their own system prompt, which is not in a field of the page."""
    if not turns:
        return []
    shown = turns[0].request["messages"][:-1]
    return [m for m in shown if m["role"] != "system" or "after" not in chat_fields(turns[0])]


def history(turns: list[Run], system: str = "", opening: Sequence[dict[str, str]] = ()) -> list[dict[str, str]]:
    """The messages so far, after those of `opening`: each prompt with its whole response, without failed turns. The
    page's system prompt takes precedence over that of `opening`."""
    system = system.strip() or next((m["content"] for m in opening if m["role"] == "system"), "")
    messages = [{"role": "system", "content": system}] if system else []
    messages += [dict(m) for m in opening if m["role"] != "system"]
    for turn in turns:
        if turn.state == "FAILED" or not turn.text:
            continue
        if chat_fields(turn).get("continues"):
            messages.pop()
        else:
            messages.append(turn.request["messages"][-1])
        messages.append({"role": "assistant", "content": whole_response(turn, turns)})
    return messages


def response_so_far(session: Session, run: Run) -> str:
    """The text of a response that may still be generated, after those that it continues."""
    path = turns_on_path(runs.group_runs(session, str(run.group_id)), run.id) if run.group_id else []
    records = [] if run.state in runs.ENDED else runs.steps_after(session, run.id, limit=10**9)
    return whole_response(run, path) + "".join(token["text"] for record in records for token in record["tokens"])


def continued_token_ids(session: Session, turn: Run) -> list[int]:
    """Token ids of the response that `turn` continues; empty if it continues none. Raises NotFound."""
    if not (earlier := chat_fields(turn).get("continues")):
        return []
    before = runs.get_run(session, earlier)
    return [*continued_token_ids(session, before), *runs.token_ids(session, before.id)]


def recent(session: Session, search: str = "", before: datetime | None = None, limit: int = 30) -> list[Chat]:
    """Chats older than `before`, newest first; with `search`, those with all its words in a turn or the name."""
    last = func.max(Run.created_at)
    query = select(Run.group_id, last, func.count()).where(Run.kind == KIND, Run.group_id.is_not(None))
    if words := search.split():
        query = query.where(Run.group_id.in_(_matching(session, words)))
    query = query.group_by(Run.group_id).order_by(last.desc()).limit(limit)
    rows = session.execute(query.having(last < before) if before else query).all()
    groups = [group for group, _, _ in rows]
    query = select(Run).where(Run.group_id.in_(groups), Run.position == 0, Run.kind == KIND)
    newest_first = session.scalars(query.order_by(Run.created_at.desc()))
    firsts = {str(run.group_id): run for run in newest_first}  # the oldest first turn of each chat
    chats = ((firsts[group], at, count) for group, at, count in rows if group in firsts)
    return [Chat(str(turn.group_id), title(turn), turn.model, count, at) for turn, at, count in chats]


def rename(session: Session, chat_id: str, name: str) -> None:
    """Rename a chat; with "" its title is the start of its first question again. Raises NotFound."""
    for turn in _turns(session, chat_id):
        turn.request = {**turn.request, KEY: {**chat_fields(turn), "name": " ".join(name.split())[:TITLE_LENGTH]}}


def remove(session: Session, chat_id: str) -> None:
    """Delete a chat with its baseline runs, whose group is a turn. Raises NotFound, or Conflict while one is active."""
    turns = [turn.id for turn in _turns(session, chat_id)]
    query = select(Run.id, Run.state).where(or_(Run.id.in_(turns), Run.group_id.in_(turns)))
    states = dict(session.execute(query).all())
    if any(state not in runs.ENDED for state in states.values()):
        raise Conflict("A response of this chat is still being generated; stop it first.")
    ids = list(states)
    session.execute(delete(RunStep).where(RunStep.run_id.in_(ids)))
    session.execute(delete(Run).where(Run.id.in_(ids)))


def remove_turn(session: Session, run_id: str) -> None:
    """Delete an ended turn and its baseline runs. Raises NotFound, or Conflict while it runs or if others follow it."""
    run = runs.get_run(session, run_id)
    if run.state not in runs.ENDED:
        raise Conflict("This response is still being generated; stop it first.")
    if run.kind != KIND:
        raise Conflict("This response belongs to a comparison or another response; delete that one.")
    if run_id in previous_turns(runs.group_runs(session, str(run.group_id))).values():
        raise Conflict("Other turns follow this one; delete those first.")
    for measured in runs.group_runs(session, run_id):
        runs.delete_run(session, measured.id)
    runs.delete_run(session, run_id)


def _turns(session: Session, chat_id: str) -> list[Run]:
    turns = [run for run in runs.group_runs(session, chat_id) if run.kind == KIND]
    if not turns:
        raise NotFound("This chat is not stored any more; start a new one.")
    return turns


def _matching(session: Session, words: list[str]) -> set[str]:
    """Chats with a turn that contains all words. The database filters by words that JSON does not escape (ASCII without
    quotes and backslashes); `_matches` checks the rest."""
    stored = cast(Run.request, Text)
    is_chat = (Run.kind == KIND, Run.group_id.is_not(None))
    query = select(Run).where(*is_chat).order_by(Run.created_at.desc()).limit(MAX_SEARCHED)
    for word in (word for word in words if word.isascii() and not {'"', "\\"} & {*word}):
        query = query.where(or_(stored.icontains(word, autoescape=True), Run.text.icontains(word, autoescape=True)))
    return {str(run.group_id) for run in session.scalars(query.execution_options(yield_per=20)) if _matches(run, words)}


def _matches(run: Run, words: list[str]) -> bool:
    text = f"{chat_fields(run).get('name', '')}\n{question(run)}\n{run.text}".lower()
    return all(word.lower() in text for word in words)
