"""HTTP routes of chats: list, one chat with its versions, rename, delete, continue a response, Markdown."""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body
from sqlalchemy.orm import Session

from app import rendered, turns
from app.widgets.formatting import ago
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.tables import Run

SIZE = 30  # number of chats per response


def routes(settings: Settings) -> APIRouter:
    """The routes under `/api/chats`, and two routes of a chat's runs."""
    router = APIRouter(prefix="/api")

    @router.get("/chats")
    def listed(find: str = "", before: str = "") -> dict[str, Any]:
        with reading(settings) as session:
            rows = chats.recent(session, find[:200], _time(before), SIZE + 1)
        shown = [{**chat.to_json(), "ago": ago(chat.at)} for chat in rows[:SIZE]]
        return {"chats": shown, "more": len(rows) > SIZE}

    @router.get("/chats/{chat_id}")
    def chat(chat_id: str, turn: str = "") -> dict[str, Any]:
        return chat_view(settings, chat_id, turn)

    @router.post("/chats/{chat_id}")
    def rename(chat_id: str, name: Annotated[str, Body(embed=True)]) -> dict[str, Any]:
        with writing(settings) as session:
            chats.rename(session, chat_id, name)
        return {"id": chat_id, "renamed": True}

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
        with reading(settings) as session:
            return {"id": run_id, "nodes": rendered.nodes(_response_so_far(session, runs.get_run(session, run_id)))}

    return router


def chat_view(settings: Settings, chat_id: str, chosen: str = "") -> dict[str, Any]:
    """The turns of a chat in order, up to the newest one or the newest below `chosen`. `plain` is the last plain run
    measured for a turn, if any; `versions` are the alternative turns at its position; `continues` is the turn whose
    response it continues, or ""."""
    with reading(settings) as session:
        all_turns = runs.group_runs(session, chat_id)
        versions = chats.sibling_turns(all_turns)
        shown = [_turn(session, run, versions[run.id]) for run in chats.turns_on_path(all_turns, chosen)]
    return {"id": chat_id, "turns": shown}


def _turn(session: Session, run: Run, versions: list[str]) -> dict[str, Any]:
    measured = runs.group_runs(session, run.id)
    plain = runs.run_view(measured[-1]) if measured else None
    continues = chats.chat_fields(run).get("continues", "")
    return {**runs.run_view(run), "plain": plain, "versions": versions, "continues": continues}


def _response_so_far(session: Session, run: Run) -> str:
    """Including the turns that it continues."""
    path = chats.turns_on_path(runs.group_runs(session, str(run.group_id)), run.id) if run.group_id else []
    records = [] if run.state in runs.ENDED else runs.steps_after(session, run.id, limit=10**9)
    return chats.whole_response(run, path) + "".join(token["text"] for record in records for token in record["tokens"])


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        raise BadInput(f"{text[:40]!r} is not a time; reload the page.") from None
