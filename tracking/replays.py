"""Replays as rows: an evaluation that says it is one, and recorded answers as runs that the Playground shows."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from tracking import runs
from tracking.tables import Evaluation, Run, new_id

KEY = "replayed"
"""What a replay's result has and no measurement: {"file", "rows", …}."""


def keep(
    session: Session, name: str, base_id: str, checkpoint_id: str, config: dict[str, Any], result: dict[str, Any]
) -> Evaluation:
    """An evaluation of recorded outputs; `result[KEY]` says of which."""
    row = Evaluation(name=name[:200], state="ready", base_id=base_id, checkpoint_id=checkpoint_id or None)
    row.config, row.result = config, result
    session.add(row)
    session.flush()
    return row


def show(session: Session, model: str, answers: Sequence[dict[str, Any]]) -> list[Run]:
    """Each answer (`messages`, `records`, `text`, `summary`) as an ended run, in a chat of its own."""
    made = []
    for answer in answers:
        most = max(answer["summary"]["tokens"], 1)
        request = {"messages": answer["messages"], "temperature": 0.0, "max_tokens": most}
        run = runs.create_run(session, "chat", model, request, new_id())
        runs.start_run(session, run.id)
        runs.add_steps(session, run.id, answer["records"])
        runs.finish_run(session, run.id, answer["text"], answer["summary"])
        made.append(run)
    return made


def is_replay(result: dict[str, Any]) -> bool:
    """Whether an evaluation's result was not measured on the target itself."""
    return KEY in (result or {})
