"""Conversations: the chat runs of a group as a tree of turns; which there are, what they are called.

A turn's request says under `chat` whom it follows (`after`, "" for none), which answer it goes on with (`continues`)
and what the chat is called (`name`). A question that is asked again or edited becomes a sibling, so nothing is lost.
Turns of before there were branches say nothing and follow each other.
"""

from collections.abc import Iterable, Sequence
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
CUT = "\ufffd"
"""What half a character at the end of a cut answer reads as."""
MOST = 500
"""Turns that a search looks at more closely."""
TITLE = 90


@dataclass(frozen=True)
class Chat:
    """A row of the list. `title` is its name, or the beginning of its first question."""

    id: str
    title: str
    is_named: bool
    model: str
    turns: int
    at: datetime

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "at": self.at.isoformat()}


def told(turn: Run) -> dict[str, Any]:
    """What a turn's request says of its place."""
    return turn.request.get(KEY) or {}


def question(turn: Run) -> str:
    """What was asked."""
    return next((m["content"] for m in reversed(turn.request.get("messages") or []) if m["role"] == "user"), "")


def title(turn: Run) -> str:
    """What the chat that begins with `turn` is called."""
    return told(turn).get("name") or " ".join(question(turn).split())[:TITLE] or "…"


def parents(turns: Sequence[Run]) -> dict[str, str]:
    """Whom each turn follows, "" none; `turns` as runs.group_runs gives them."""
    found: dict[str, str] = {}
    before = ""
    for turn in turns:
        if "after" in told(turn):
            found[turn.id] = told(turn)["after"] if told(turn)["after"] in found else ""
        else:
            found[turn.id], before = before, turn.id
    return found


def line(turn_id: str, follows: dict[str, str]) -> list[str]:
    """Ids from the first question down to `turn_id`; empty for one that is not there."""
    found = []
    while turn_id in follows:
        found.append(turn_id)
        turn_id = follows[turn_id]
    return found[::-1]


def path(turns: Sequence[Run], chosen: str = "") -> list[Run]:
    """The turns of one way through the tree: to the newest turn, or to the newest one below `chosen`."""
    follows, by_id = parents(turns), {turn.id: turn for turn in turns}
    lines = [line(turn.id, follows) for turn in turns]
    ways = [way for way in lines if chosen in way] or lines
    newest = max(ways, key=lambda way: (by_id[way[-1]].created_at, len(way)), default=[])
    return [by_id[turn_id] for turn_id in newest]


def versions(turns: Sequence[Run]) -> dict[str, list[str]]:
    """For each turn the turns that stand in its place, itself among them, oldest first."""
    follows = parents(turns)
    order = sorted(turns, key=lambda turn: turn.created_at)
    return {turn.id: [other.id for other in order if follows[other.id] == follows[turn.id]] for turn in turns}


def answer(turn: Run, way: Sequence[Run]) -> str:
    """The whole answer that `turn`, on this way, is the last part of."""
    parts = [turn.text]
    before = {other.id: other for other in way}
    while (turn := before.get(told(turn).get("continues", ""))) is not None:
        parts.insert(0, turn.text.rstrip(CUT))
    return "".join(parts)


def written(session: Session, turn: Run) -> list[int]:
    """Token ids of the answer that `turn` goes on with; empty for one that begins anew. Raises NotFound."""
    if not (earlier := told(turn).get("continues")):
        return []
    before = runs.get_run(session, earlier)
    return [*written(session, before), *runs.token_ids(session, before.id)]


def recent(session: Session, words: str = "", before: datetime | None = None, limit: int = 30) -> list[Chat]:
    """Chats whose last turn was made before `before`, newest first; with `words`, those that hold them in one turn or
    in their name."""
    last = func.max(Run.created_at)
    query = select(Run.group_id, last, func.count()).where(Run.kind == KIND, Run.group_id.is_not(None))
    if words.split():
        query = query.where(Run.group_id.in_(_holding(session, words.split())))
    query = query.group_by(Run.group_id).order_by(last.desc()).limit(limit)
    found = session.execute(query.having(last < before) if before else query).all()
    firsts = _firsts(session, [group for group, _, _ in found])
    return [_chat(firsts[group], at, count) for group, at, count in found if group in firsts]


def rename(session: Session, chat_id: str, name: str) -> None:
    """Call a chat `name`; "" gives it its first question back. Raises NotFound."""
    for turn in _turns(session, chat_id):
        turn.request = {**turn.request, KEY: {**told(turn), "name": name}}


def remove(session: Session, chat_id: str) -> None:
    """Take a chat with its steps and what was measured for it out. Raises NotFound, Conflict while it goes on."""
    turns = _turns(session, chat_id)
    if any(turn.state not in runs.ENDED for turn in turns):
        raise Conflict("The last answer of this chat is still coming; stop it first.")
    ids = [turn.id for turn in turns]
    measured = session.execute(select(Run.id, Run.state).where(Run.group_id.in_(ids))).all()
    if any(state not in runs.ENDED for _, state in measured):
        raise Conflict("A plain answer is still being measured for this chat; stop it first.")
    ids += [run_id for run_id, _ in measured]
    session.execute(delete(RunStep).where(RunStep.run_id.in_(ids)))
    session.execute(delete(Run).where(Run.id.in_(ids)))


def _turns(session: Session, chat_id: str) -> list[Run]:
    turns = [run for run in runs.group_runs(session, chat_id) if run.kind == KIND]
    if not turns:
        raise NotFound("This chat is not stored here any more.")
    return turns


def _chat(first: Run, at: datetime, count: int) -> Chat:
    return Chat(str(first.group_id), title(first), bool(told(first).get("name")), first.model, count, at)


def _firsts(session: Session, groups: Iterable[str]) -> dict[str, Run]:
    """The oldest first question of each chat."""
    query = select(Run).where(Run.group_id.in_(list(groups)), Run.position == 0, Run.kind == KIND)
    found: dict[str, Run] = {}
    for run in session.scalars(query.order_by(Run.created_at)):
        found.setdefault(str(run.group_id), run)
    return found


def _holding(session: Session, words: list[str]) -> set[str]:
    """Chats with a turn that holds all words. The database narrows; JSON may write a character as its number, and
    writes quotes and backslashes otherwise."""
    stored = cast(Run.request, Text)
    query = select(Run).where(Run.kind == KIND, Run.group_id.is_not(None)).order_by(Run.created_at.desc()).limit(MOST)
    for word in (word for word in words if word.isascii() and not {'"', "\\"} & {*word}):
        query = query.where(or_(stored.icontains(word, autoescape=True), Run.text.icontains(word, autoescape=True)))
    return {str(run.group_id) for run in session.scalars(query.execution_options(yield_per=20)) if _holds(run, words)}


def _holds(run: Run, words: list[str]) -> bool:
    text = f"{told(run).get('name', '')}\n{question(run)}\n{run.text}".lower()
    return all(word.lower() in text for word in words)
