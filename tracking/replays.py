"""Rows of replays: an evaluation of recorded responses, and the responses as runs for the Playground."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from tracking import runs
from tracking.tables import Evaluation, Run, new_id

KEY = "replayed"  # key in the result of a replay, absent in measurements: {"file", "rows", …}


def save_evaluation(
    session: Session, name: str, base_id: str, checkpoint_id: str, config: dict[str, Any], result: dict[str, Any]
) -> Evaluation:
    """Store an evaluation of recorded outputs; `result[KEY]` describes the recording."""
    row = Evaluation(name=name[:200], state="ready", base_id=base_id, checkpoint_id=checkpoint_id or None)
    row.config, row.result = config, result
    session.add(row)
    session.flush()
    return row


def save_responses(session: Session, model: str, answers: Sequence[dict[str, Any]]) -> list[Run]:
    """Store each response (`messages`, `records`, `text`, `summary`) as a finished run in its own chat."""
    created = []
    for answer in answers:
        max_tokens = max(answer["summary"]["tokens"], 1)
        request = {"messages": answer["messages"], "temperature": 0.0, "max_tokens": max_tokens}
        run = runs.create_run(session, "chat", model, request, new_id())
        runs.start_run(session, run.id)
        runs.add_steps(session, run.id, answer["records"])
        runs.finish_run(session, run.id, answer["text"], answer["summary"])
        created.append(run)
    return created


def is_replay(result: dict[str, Any]) -> bool:
    """Whether an evaluation's result comes from a recording instead of a measurement."""
    return KEY in (result or {})
