"""Live generations as rows: the web makes them, the inference server fills them, pages replay them.

    QUEUED → RUNNING → SUCCEEDED | FAILED | CANCELLED

Every function takes an open session and leaves the commit to its caller. Knows neither torch nor the web.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from speculoos.errors import NotFound
from tracking.tables import Run, RunStep, new_id, now
from tracking.values import storable

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
POSTED_WITHIN = timedelta(seconds=30)
"""The web posts a run's id at once or gives it up; one that waits for longer has been posted, if ever."""
LEFT_OVER = "The inference server was restarted while this run was waiting or going on; send it again."


def create_run(
    session: Session, kind: str, model: str, request: dict[str, Any], group_id: str | None = None, position: int = 0
) -> Run:
    """A QUEUED run of `model` (`base` or `base@checkpoint`). `request` holds OpenAI chat parameters: messages, …"""
    run = Run(id=new_id(), kind=kind, model=model, request=request, group_id=group_id, position=position)
    session.add(run)
    session.flush()
    return run


def create_comparison(
    session: Session, columns: Sequence[tuple[str, dict[str, Any]]], backwards: bool = False
) -> list[Run]:
    """One group of runs, a (model, request) each. The inference server runs them one after the other as they were
    made: the first column first, or the last one."""
    group, began = new_id(), now()
    made = [create_run(session, "compare", model, request, group, i) for i, (model, request) in enumerate(columns)]
    for moment, run in enumerate(made[::-1] if backwards else made):
        run.created_at = began + timedelta(microseconds=moment)
    session.flush()
    return made


def next_backwards(session: Session) -> bool:
    """Whether the next comparison is measured from its last column: when the one before was from its first."""
    second = select(Run).where(Run.kind == "compare", Run.position == 1).order_by(Run.created_at.desc()).limit(1)
    last = session.scalar(second)
    columns = group_runs(session, str(last.group_id)) if last else []
    return bool(last) and columns[0].created_at < last.created_at


def get_run(session: Session, run_id: str) -> Run:
    """Raises NotFound."""
    if run := session.get(Run, run_id):
        return run
    raise NotFound(f"There is no run {run_id!r}.")


def state_of(session: Session, run_id: str) -> str:
    """Of the run alone, without reading the rest of its row. Raises NotFound."""
    if state := session.scalar(select(Run.state).where(Run.id == run_id)):
        return state
    raise NotFound(f"There is no run {run_id!r}.")


def group_runs(session: Session, group_id: str) -> list[Run]:
    """Turns of a chat or columns of a comparison, in order."""
    order = (Run.position, Run.created_at)
    return list(session.scalars(select(Run).where(Run.group_id == group_id).order_by(*order)))


def start_run(session: Session, run_id: str) -> bool:
    """QUEUED → RUNNING; False when someone else started, cancelled or failed it first."""
    return _move(session, run_id, ("QUEUED",), state="RUNNING")


def add_steps(session: Session, run_id: str, records: Iterable[dict[str, Any]]) -> None:
    """Append trace records (Step.record with texts). Indices must be new."""
    rows = [{"run_id": run_id, "index": record["index"], "record": record} for record in records]
    if rows:
        session.execute(insert(RunStep), rows)


def steps_after(session: Session, run_id: str, after: int = -1, limit: int = 500) -> list[dict[str, Any]]:
    """Records with an index greater than `after`, in order; at most `limit`."""
    query = select(RunStep.record).where(RunStep.run_id == run_id, RunStep.index > after)
    return list(session.scalars(query.order_by(RunStep.index).limit(limit)))


def finish_run(session: Session, run_id: str, text: str, summary: dict[str, Any]) -> bool:
    """RUNNING → SUCCEEDED with the whole text and its figures."""
    values = {"text": storable(text), "summary": summary}
    return _end(session, run_id, ("RUNNING",), state="SUCCEEDED", **values)


def cancel_run(session: Session, run_id: str, text: str = "", summary: dict[str, Any] | None = None) -> bool:
    """QUEUED or RUNNING → CANCELLED; what was generated until then is kept. False when it had ended already."""
    values = {"text": storable(text), "summary": summary or {}}
    return _end(session, run_id, ("QUEUED", "RUNNING"), state="CANCELLED", **values)


def fail_run(session: Session, run_id: str, error: str) -> bool:
    """QUEUED or RUNNING → FAILED with one sentence. False when it had ended already."""
    return _end(session, run_id, ("QUEUED", "RUNNING"), state="FAILED", error=storable(error))


def fail_leftovers(session: Session) -> int:
    """End the runs a killed inference server left: all RUNNING, and those QUEUED for longer than POSTED_WITHIN.
    Returns how many."""
    waiting = and_(Run.state == "QUEUED", Run.created_at < now() - POSTED_WITHIN)
    left = or_(Run.state == "RUNNING", waiting)
    ids = list(session.scalars(select(Run.id).where(left)))
    return sum(fail_run(session, run_id, LEFT_OVER) for run_id in ids)


def queued_before(session: Session, time: datetime) -> list[str]:
    """Ids of the runs that were made before `time` and wait still."""
    return list(session.scalars(select(Run.id).where(Run.state == "QUEUED", Run.created_at < time)))


def delete_run(session: Session, run_id: str) -> None:
    """Remove an ended run and its steps; one that waits or goes on stays. Raises NotFound."""
    if get_run(session, run_id).state in ENDED:
        session.execute(delete(RunStep).where(RunStep.run_id == run_id))
        session.execute(delete(Run).where(Run.id == run_id))


def run_view(run: Run) -> dict[str, Any]:
    """A run as JSON, without its steps: what pages and the API show."""
    return {
        "id": run.id,
        "kind": run.kind,
        "group_id": run.group_id,
        "position": run.position,
        "state": run.state,
        "ended": run.state in ENDED,
        "model": run.model,
        "request": run.request,
        "text": run.text,
        "summary": run.summary,
        "error": run.error,
        "created_at": run.created_at.isoformat(),
        "finished_at": run.finished_at.isoformat() if run.finished_at else None,
    }


def token_ids(session: Session, run_id: str) -> list[int]:
    """Every emitted token id of a run, from its records."""
    records = steps_after(session, run_id, limit=10**9)
    return [token["id"] for record in records for token in record["tokens"]]


def compare(session: Session, group_id: str) -> list[dict[str, Any]]:
    """Columns of a comparison as `run_view`s, each with `token_count` and, against the first column,
    `identical` and `first_divergence` (see the function)."""
    runs = group_runs(session, group_id)
    ids = [token_ids(session, run.id) for run in runs]
    return [
        {
            **run_view(run),
            "token_count": len(own),
            "identical": own == ids[0],
            "first_divergence": first_divergence(own, ids[0]),
        }
        for run, own in zip(runs, ids, strict=True)
    ]


def first_divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token where both have one and they differ, or where only one goes on; None when equal."""
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def _end(session: Session, run_id: str, states: tuple[str, ...], **values: Any) -> bool:
    return _move(session, run_id, states, finished_at=now(), **values)


def _move(session: Session, run_id: str, states: tuple[str, ...], **values: Any) -> bool:
    """Compare-and-set on the state column."""
    moved = session.execute(update(Run).where(Run.id == run_id, Run.state.in_(states)).values(**values))
    return moved.rowcount == 1
