"""Runs a prompt of an evaluation again in the Playground, with p and q of every candidate, to show its steps. Greedy
responses are the same; the speed is not comparable with the evaluation's."""

from collections.abc import Mapping
from typing import Any

from app import turns
from speculoos.errors import BadInput, NotFound
from speculoos.settings import Settings
from tracking import queries, runs
from tracking.db import writing
from tracking.tables import Base, Checkpoint, Evaluation, new_id

PROMPT_NOT_STORED = "This prompt is not stored with the evaluation. Measure again, or enter it in the Playground."


def run_again(settings: Settings, evaluation_id: str, number: str) -> tuple[str, str]:
    """Start the run: (id of its chat, error message or ""). Raises NotFound or BadInput."""
    with writing(settings) as session:
        row = session.get(Evaluation, evaluation_id)
        if row is None:
            raise NotFound("This evaluation is gone: it was deleted, or the URL is wrong.")
        request = request_of(row, number)
        base, draft = session.get(Base, row.base_id or ""), session.get(Checkpoint, row.checkpoint_id or "")
        if base is None or (row.checkpoint_id and draft is None):
            raise NotFound("The base model or the checkpoint of this evaluation was deleted.")
        model = queries.model_name(session, base.id, row.checkpoint_id)
        run = runs.create_run(session, "chat", model, request, new_id())
    return str(run.group_id), turns.start(settings, run.id)


def request_of(row: Evaluation, number: str) -> dict[str, Any]:
    """The evaluation's request for a prompt: messages, sampling, speculation. Raises BadInput if it is not stored."""
    prompts = (row.result or {}).get("per_prompt") or []
    prompt = prompts[int(number)] if number.isdecimal() and int(number) < len(prompts) else {}
    if not isinstance(prompt, Mapping) or not prompt.get("messages"):
        raise BadInput(PROMPT_NOT_STORED)
    config = row.config or {}
    sampling = {"max_tokens": row.result.get("max_tokens") or 128, "temperature": row.temperature, "seed": 0}
    if row.top_p != 1:
        sampling["top_p"] = row.top_p
    speculation = {**(config.get("drafting") or {}), "probabilities": True}
    return {"messages": prompt["messages"], **sampling, "speculation": speculation}
