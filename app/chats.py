"""Conversations over HTTP: the list, one of them with its versions, names, going on with an answer, Markdown."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body

from app import rendered, turns
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing

SIZE = 30
"""Chats of the list that are sent at once."""
LONGEST_NAME = 120


def routes(settings: Settings) -> APIRouter:
    """The routes under `/api/chats`, and two of a run that is a turn."""
    router = APIRouter(prefix="/api")

    @router.get("/chats")
    def listed(find: str = "", before: str = "") -> dict[str, Any]:
        return list_view(settings, find[:200], before)

    @router.get("/chats/{chat_id}")
    def chat(chat_id: str, turn: str = "") -> dict[str, Any]:
        return chat_view(settings, chat_id, turn)

    @router.put("/chats/{chat_id}")
    def rename(chat_id: str, name: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        return {"id": chat_id, "name": called(settings, chat_id, name)}

    @router.delete("/chats/{chat_id}")
    def remove(chat_id: str) -> dict[str, Any]:
        with writing(settings) as session:
            chats.remove(session, chat_id)
        return {"id": chat_id, "removed": True}

    @router.post("/runs/{run_id}/continue")
    def go_on(run_id: str) -> dict[str, Any]:
        return turns.continue_turn(settings, run_id)

    @router.get("/runs/{run_id}/markdown")
    def markdown(run_id: str) -> dict[str, Any]:
        return {"id": run_id, "nodes": rendered.nodes(whole_answer(settings, run_id))}

    return router


def list_view(settings: Settings, find: str = "", before: str = "") -> dict[str, Any]:
    """A part of the list, newest first; `before` is the time of the last one shown, `more` whether others follow."""
    with reading(settings) as session:
        found = chats.recent(session, find, _time(before), SIZE + 1)
    return {"chats": [chat.to_json() for chat in found[:SIZE]], "more": len(found) > SIZE}


def chat_view(settings: Settings, chat_id: str, chosen: str = "") -> dict[str, Any]:
    """The turns of a chat in order, to the newest one or to the newest below `chosen`. `plain` is the last plain run
    measured for a turn, if any; `versions` are the turns that stand in its place; `question` is its own, "" where it
    goes on with an answer."""
    with reading(settings) as session:
        all_turns = runs.group_runs(session, chat_id)
        standing = chats.versions(all_turns)
        shown = [_turn(session, run, standing[run.id]) for run in chats.path(all_turns, chosen)]
    return {"id": chat_id, "title": chats.title(all_turns[0]) if all_turns else "", "turns": shown}


def _turn(session: Any, run: Any, versions: list[str]) -> dict[str, Any]:
    measured = runs.group_runs(session, run.id)
    continues = chats.told(run).get("continues", "")
    return {
        **runs.run_view(run),
        "plain": runs.run_view(measured[-1]) if measured else None,
        "versions": versions,
        "continues": continues,
    }


def called(settings: Settings, chat_id: str, name: str) -> str:
    """The name that a chat was given. Raises BadInput, NotFound."""
    name = " ".join(name.split())
    if len(name) > LONGEST_NAME:
        raise BadInput(f"The name is longer than {LONGEST_NAME} characters; shorten it.")
    turns.check_whole(name, "The name")
    with writing(settings) as session:
        chats.rename(session, chat_id, name)
    return name


def whole_answer(settings: Settings, run_id: str) -> str:
    """What was answered so far, with the parts it goes on from. Raises NotFound."""
    with reading(settings) as session:
        run = runs.get_run(session, run_id)
        way = chats.path(runs.group_runs(session, str(run.group_id)), run_id) if run.group_id else []
        text = chats.answer(run, way)
        if run.state in runs.ENDED:
            return text
        records = runs.steps_after(session, run_id, limit=10**9)
    return text + "".join(token["text"] for record in records for token in record["tokens"])


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        raise BadInput(f"{text[:40]!r} is no time; reload the page.") from None
