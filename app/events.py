"""HTTP routes of runs, chats and comparisons: step records as server-sent events, JSON, Markdown, rename, delete.

Everything is read from rows, so a reload replays the run and a restart of this process loses nothing. Database reads
run in threads.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Body, Request
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy.orm import Session

from app import inference, rendered, turns
from app.visitor import is_logged_in
from app.widgets.formatting import ago
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.tables import Run

LIVE_POLL = 0.05  # poll interval in seconds of a generating run
WAITING_POLL = 0.25  # poll interval in seconds of a run that has not started
KEEP_ALIVE = 15.0  # seconds without events after which a comment is sent, so that proxies keep the connection
SIZE = 30  # number of chats per response
PAGE = 500  # maximum number of records per query


def routes(settings: Settings) -> APIRouter:
    """The routes under `/api/runs`, `/api/chats` and `/api/comparisons`."""
    router = APIRouter(prefix="/api")

    @router.get("/runs/{run_id}/events")
    async def events(run_id: str, request: Request) -> StreamingResponse:
        await asyncio.to_thread(view, settings, run_id)
        last = _last_event(request.headers.get("last-event-id", ""))
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        records = follow(settings, run_id, last, lambda: is_logged_in(request))
        return StreamingResponse(records, media_type="text/event-stream", headers=headers)

    @router.get("/runs/{run_id}")
    def run(run_id: str) -> dict[str, Any]:
        return view(settings, run_id)

    @router.delete("/runs/{run_id}")
    def remove(run_id: str) -> dict[str, Any]:
        return removed(settings, chats.remove_turn, run_id)

    @router.post("/runs/{run_id}/cancel")
    def cancel(run_id: str) -> dict[str, Any]:
        inference.cancel(settings, run_id)
        return view(settings, run_id)

    @router.post("/runs/{run_id}/plain")
    def plain(run_id: str, again: bool = False) -> dict[str, Any]:
        return turns.measure_plain(settings, run_id, again)

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
    def remove_chat(chat_id: str) -> dict[str, Any]:
        return removed(settings, chats.remove, chat_id)

    @router.post("/runs/{run_id}/continue")
    def go_on(run_id: str) -> dict[str, Any]:
        return turns.continue_turn(settings, run_id)

    @router.get("/runs/{run_id}/markdown")
    def markdown(run_id: str) -> dict[str, Any]:
        with reading(settings) as session:
            return {
                "id": run_id,
                "nodes": rendered.nodes(chats.response_so_far(session, runs.get_run(session, run_id))),
            }

    @router.get("/comparisons/{group_id}")
    def comparison(group_id: str) -> dict[str, Any]:
        return comparison_view(settings, group_id)

    @router.delete("/comparisons/{group_id}")
    def remove_comparison(group_id: str) -> dict[str, Any]:
        return removed(settings, runs.remove_comparison, group_id)

    return router


async def answer_error(_request: Request, error: SpeculoosError) -> JSONResponse:
    """Exception handler of the API routes: a SpeculoosError as JSON with its message."""
    status = 404 if isinstance(error, NotFound) else 503 if isinstance(error, Unavailable) else 400
    return JSONResponse({"error": {"message": str(error), "code": error.code}}, status_code=status)


def view(settings: Settings, run_id: str) -> dict[str, Any]:
    """One run without its steps. Raises NotFound."""
    with reading(settings) as session:
        return runs.run_view(runs.get_run(session, run_id))


def comparison_view(settings: Settings, group_id: str) -> dict[str, Any]:
    """The columns of a comparison, each relative to the first. Raises NotFound."""
    with reading(settings) as session:
        columns = runs.compare(session, group_id)
    if not columns:
        raise NotFound(f"There is no comparison {group_id!r}.")
    return {"id": group_id, "columns": columns}


def removed(settings: Settings, remove: Callable[[Session, str], None], row_id: str) -> dict[str, Any]:
    """Delete a row; returns the response."""
    with writing(settings) as session:
        remove(session, row_id)
    return {"id": row_id, "removed": True}


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


def _time(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except (ValueError, OverflowError):
        raise BadInput(f"{text[:40]!r} is not a time; reload the page.") from None


async def follow(
    settings: Settings, run_id: str, last: int, allowed: Callable[[], Awaitable[bool]] | None = None
) -> AsyncIterator[str]:
    """The run's records after index `last` as server-sent events, then `end` with the run itself.

    `state` events report state changes; event ids are step indices, so a reconnecting browser resumes where it was.
    The stream breaks off if the database cannot be read or the run was deleted; the browser then reconnects. It also
    ends with the reader's login, which `allowed` checks before every poll.
    """
    shown, silent = "", 0.0
    while True:
        try:
            if allowed and not await allowed():
                yield ": logged out\n\n"
                return
            run, records = await asyncio.to_thread(_poll, settings, run_id, last)
        except SpeculoosError as error:
            yield f": {' '.join(str(error).split())}\nretry: 2000\n\n"
            return
        text = "".join(event("step", record, record["index"]) for record in records)
        if run["state"] != shown and not run["ended"]:
            shown = run["state"]
            text = event("state", {"state": shown}) + text
        if records:
            last = records[-1]["index"]
        if run["ended"] and len(records) < PAGE:
            yield text + event("end", run)
            return
        if text or silent >= KEEP_ALIVE:
            yield text or ": still here\n\n"
            silent = 0.0
        if len(records) < PAGE:
            pause = LIVE_POLL if run["state"] == "RUNNING" else WAITING_POLL
            silent += pause
            await asyncio.sleep(pause)


def event(name: str, data: dict[str, Any], number: int | None = None) -> str:
    """One server-sent event. JSON contains no raw line breaks, so one data line is enough."""
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _poll(settings: Settings, run_id: str, last: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Reads the state before the steps, because an ended run has all its steps stored. The whole run only if ended."""
    with reading(settings) as session:
        state = runs.state_of(session, run_id)
        run = runs.run_view(runs.get_run(session, run_id)) if state in runs.ENDED else {"state": state, "ended": False}
        return run, runs.steps_after(session, run_id, last, PAGE)


def _last_event(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else -1
