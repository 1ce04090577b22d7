"""Live generations as rows: the web app creates them, the inference server fills them, pages replay them.

    QUEUED → RUNNING → SUCCEEDED | FAILED | CANCELLED

Functions take an open session; the caller commits. Independent of torch and the web app.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import Any

from sqlalchemy import and_, delete, insert, or_, select, update
from sqlalchemy.orm import Session

from speculoos.errors import Conflict, NotFound
from tracking.names import server_of
from tracking.tables import Run, RunStep, new_id, now
from tracking.values import storable

ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
POSTED_WITHIN = timedelta(seconds=30)  # the web app posts a run's id within this time or not at all
LEFT_OVER = "The inference server was restarted before this run had finished; send it again."


def create_run(
    session: Session, kind: str, model: str, request: dict[str, Any], group_id: str | None = None, position: int = 0
) -> Run:
    """Create a QUEUED run of `model` (`base`, `base@checkpoint`, a server's `@endpoint`). `request` has OpenAI's chat
    parameters."""
    run = Run(id=new_id(), kind=kind, model=model, request=request, group_id=group_id, position=position)
    session.add(run)
    session.flush()
    return run


def create_comparison(
    session: Session, columns: Sequence[tuple[str, dict[str, Any]]], backwards: bool = False
) -> list[Run]:
    """Create a group of runs, one per (model, request). The inference server runs them one by one in the order of
    `created_at`: from the first column to the last, or backwards."""
    group, start = new_id(), now()
    created = [create_run(session, "compare", model, request, group, i) for i, (model, request) in enumerate(columns)]
    for index, run in enumerate(created[::-1] if backwards else created):
        run.created_at = start + timedelta(microseconds=index)
    session.flush()
    return created


def next_backwards(session: Session) -> bool:
    """Whether the next comparison starts with its last column; the direction alternates."""
    query = select(Run).where(Run.kind == "compare", Run.position == 1).order_by(Run.created_at.desc()).limit(1)
    last = session.scalar(query)
    columns = group_runs(session, str(last.group_id)) if last else []
    return bool(last) and columns[0].created_at < last.created_at


def get_run(session: Session, run_id: str) -> Run:
    if run := session.get(Run, run_id):
        return run
    raise NotFound(f"There is no run {run_id!r}.")


def state_of(session: Session, run_id: str) -> str:
    """The state of a run, without reading the rest of its row. Raises NotFound."""
    if state := session.scalar(select(Run.state).where(Run.id == run_id)):
        return state
    raise NotFound(f"There is no run {run_id!r}.")


def group_runs(session: Session, group_id: str) -> list[Run]:
    """Turns of a chat or columns of a comparison, in order."""
    order = (Run.position, Run.created_at)
    return list(session.scalars(select(Run).where(Run.group_id == group_id).order_by(*order)))


def start_run(session: Session, run_id: str) -> bool:
    """QUEUED → RUNNING; False if it was started, cancelled or failed already."""
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


def replace_steps(session: Session, run_id: str, records: Iterable[dict[str, Any]]) -> None:
    """Replace all records that were added with these."""
    session.execute(delete(RunStep).where(RunStep.run_id == run_id))
    add_steps(session, run_id, records)


def finish_run(session: Session, run_id: str, text: str, summary: dict[str, Any]) -> bool:
    """RUNNING → SUCCEEDED with the whole text and its summary."""
    values = {"text": storable(text), "summary": summary}
    return _move(session, run_id, ("RUNNING",), state="SUCCEEDED", **values)


def cancel_run(session: Session, run_id: str, text: str = "", summary: dict[str, Any] | None = None) -> bool:
    """QUEUED or RUNNING → CANCELLED with the text generated so far. False if it had ended already."""
    values = {"text": storable(text), "summary": summary or {}}
    return _move(session, run_id, ("QUEUED", "RUNNING"), state="CANCELLED", **values)


def fail_run(session: Session, run_id: str, error: str) -> bool:
    """QUEUED or RUNNING → FAILED with one sentence. False if it had ended already."""
    return _move(session, run_id, ("QUEUED", "RUNNING"), state="FAILED", error=storable(error))


def fail_leftovers(session: Session) -> int:
    """Fail runs of a killed inference server: RUNNING ones and long QUEUED ones. Returns their number."""
    waiting = and_(Run.state == "QUEUED", Run.created_at < now() - POSTED_WITHIN)
    ids = list(session.scalars(select(Run.id).where(or_(Run.state == "RUNNING", waiting))))
    return sum(fail_run(session, run_id, LEFT_OVER) for run_id in ids)


def queued_before(session: Session, time: datetime) -> list[str]:
    return list(session.scalars(select(Run.id).where(Run.state == "QUEUED", Run.created_at < time)))


def delete_run(session: Session, run_id: str) -> None:
    """Delete a run and its steps if it has ended. Raises NotFound."""
    if get_run(session, run_id).state in ENDED:
        session.execute(delete(RunStep).where(RunStep.run_id == run_id))
        session.execute(delete(Run).where(Run.id == run_id))


def remove_comparison(session: Session, group_id: str) -> None:
    """Delete all columns of an ended comparison. Raises NotFound, or Conflict while one runs."""
    columns = [run for run in group_runs(session, group_id) if run.kind == "compare"]
    if not columns:
        raise NotFound(f"There is no comparison {group_id!r}.")
    if any(run.state not in ENDED for run in columns):
        raise Conflict("This comparison is still being measured; stop it first.")
    for run in columns:
        delete_run(session, run.id)


def run_view(run: Run) -> dict[str, Any]:
    """A run as JSON, without its steps, for pages and the API."""
    columns = {column.key: getattr(run, column.key) for column in Run.__table__.columns}
    times = {key: value.isoformat() for key, value in columns.items() if isinstance(value, datetime)}
    return columns | times | {"ended": run.state in ENDED}


def token_ids(session: Session, run_id: str) -> list[int]:
    """All emitted token ids of a run, from its records."""
    return _ids(_tokens(session, run_id))


def _tokens(session: Session, run_id: str) -> list[dict[str, Any]]:
    return [token for record in steps_after(session, run_id, limit=10**9) for token in record["tokens"]]


def compare(session: Session, group_id: str) -> list[dict[str, Any]]:
    """Columns of a comparison as `run_view`s with `token_count` and, relative to the first column, `identical` and
    `first_divergence` (a token). Tokens of servers have no ids: their texts are compared (`by_text`)."""
    runs = group_runs(session, group_id)
    tokens = [_tokens(session, run.id) for run in runs]
    views = []
    for run, run_tokens in zip(runs, tokens, strict=True):
        by_text = bool(server_of(run.model) or server_of(runs[0].model))
        at = _text_divergence(run_tokens, tokens[0]) if by_text else first_divergence(_ids(run_tokens), _ids(tokens[0]))
        comparison = {
            "token_count": len(run_tokens),
            "identical": at is None,
            "first_divergence": at,
            "by_text": by_text,
        }
        views.append(run_view(run) | comparison)
    return views


def _ids(tokens: Sequence[dict[str, Any]]) -> list[int]:
    return [token["id"] for token in tokens]


def _text_divergence(a: Sequence[dict[str, Any]], b: Sequence[dict[str, Any]]) -> int | None:
    """Index of the token of `a` with the first character that differs from the text of `b`; None if equal."""
    at = first_divergence(*("".join(token["text"] for token in tokens) for tokens in (a, b)))
    ends = accumulate(len(token["text"]) for token in a)
    return at if at is None else next((index for index, end in enumerate(ends) if end > at), len(a))


def first_divergence(a: Sequence[Any], b: Sequence[Any]) -> int | None:
    """Index of the first difference; the shorter length if one is a prefix of the other; None if equal."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), None if len(a) == len(b) else min(len(a), len(b)))


def _move(session: Session, run_id: str, states: tuple[str, ...], **values: Any) -> bool:
    if values["state"] in ENDED:
        values["finished_at"] = now()
    moved = session.execute(update(Run).where(Run.id == run_id, Run.state.in_(states)).values(**values))
    return moved.rowcount == 1
