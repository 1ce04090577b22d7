"""Jobs `evaluate`: acceptance and speed of a base with a checkpoint or another drafter, on the leased device, or of an
endpoint; and `matrix`, whose cells become evaluation jobs. After they have ended, the matrix runs again."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from evaluation.questions import built_in, read_questions
from speculoos.errors import Cancelled
from speculoos.redaction import known_secrets, redact
from tracking import db
from tracking.evaluations import THIS_INSTALLATION, columns_of
from tracking.shards import ShardPlan, ShardSpec
from tracking.tables import Base, Checkpoint, Dataset, Evaluation
from workers.child.context import JobContext
from workers.jobs import sizes
from workers.jobs.estimates import estimate_shards
from workers.jobs.matrix import cell_name, matrix_evaluations
from workers.jobs.requests import Evaluate, Matrix, PlanRequest, Tune

OF_CHECKPOINT = (
    "mean_accepted_length",
    "acceptance_by_depth",
    "mean_accepted_length_interval",
    "speedup",
    "speedup_interval",
    "tokens_per_second",
    "plain_tokens_per_second",
    "identical_to_plain",
)
"""Figures that are also stored in the checkpoint's row, replacing those of its last evaluation."""


def run(request: Evaluate, context: JobContext) -> dict[str, Any]:
    """Measure and fill the evaluation's row; with usual options (`is_usual`) also the checkpoint's figures."""
    for table, row_id in ((Base, request.base_id), (Checkpoint, request.checkpoint_id)):
        if row_id:
            context.input_row(table, row_id)
    if earlier := _prepare_row(request, context):
        return brief(request.evaluation_id, earlier)
    questions = request_questions(request, context)
    measure = _evaluate_endpoint if request.endpoint else _evaluate_local
    result = measure(request, context, questions)
    context.update_output(Evaluation, request.evaluation_id, state="ready", result=result, **columns_of(result))
    if is_usual(request):
        context.add_figures(request.checkpoint_id, {**_figures(result), "measured_on": THIS_INSTALLATION})
    return brief(request.evaluation_id, result)


def brief(evaluation_id: str, result: Mapping[str, Any]) -> dict[str, Any]:
    """The job's result: the evaluation's id and main figures."""
    return {"evaluation_id": evaluation_id, **_figures(result)}


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    return {key: result[key] for key in OF_CHECKPOINT if key in result}


def is_usual(request: Evaluate) -> bool:
    """Whether the checkpoint is measured as usually used: greedy, with its own tree, in this engine."""
    defaults = not (request.drafting or request.dtype or request.endpoint or request.matrix_id)
    return bool(request.checkpoint_id) and defaults and request.temperature == 0


def _prepare_row(request: Evaluate, context: JobContext) -> dict[str, Any]:
    """Create the row of a matrix cell, or take it over from an earlier attempt; returns its result if it has one."""
    with context.fenced() as session:
        row = session.get(Evaluation, request.evaluation_id)
        if row is None:
            name, columns = request.default_name(session), request.columns(session)
            row = Evaluation(id=request.evaluation_id, name=name, **columns)
            session.add(row)
        if row.state == "ready" and row.matrix_id:
            return row.result
        row.state, row.job_id = "pending", context.job_id
        return {}


def _evaluate_local(request: Evaluate, context: JobContext, questions: list[dict[str, Any]]) -> dict[str, Any]:
    from evaluation.acceptance import AcceptanceSampling, evaluate
    from workers.child.work.measure import load_models

    loaded = load_models(context, request.base_id, request.checkpoint_id, request.dtype)
    for notice in getattr(loaded.draft, "notices", []):
        context.log(str(notice), "warning")
    context.log(f"Measuring {len(questions)} questions on {loaded.device}, alternating plain and speculative steps.")
    sampling = AcceptanceSampling(temperature=request.temperature, top_p=request.top_p, seed=request.seed)
    return evaluate(
        loaded.base,
        loaded.draft,
        questions,
        context,
        max_tokens=request.max_tokens,
        options=request.drafting,
        sampling=sampling,
        max_minutes=request.max_minutes,
    )


def _evaluate_endpoint(request: Evaluate, context: JobContext, questions: list[dict[str, Any]]) -> dict[str, Any]:
    from evaluation.served import ServedRequest, evaluate_served

    endpoint = context.endpoints(request.endpoint)[0]
    plain = context.endpoints(request.plain_endpoint)[0] if request.plain_endpoint else None
    options = ServedRequest(request.max_tokens, request.temperature, request.top_p, request.seed)
    then = f", then {', '.join(map(str, request.concurrency))} at a time" if request.concurrency else ""
    context.log(f"Sending {len(questions)} questions to {endpoint.name}, one after the other{then}.")
    result = evaluate_served(
        endpoint,
        questions,
        context,
        options,
        model=request.endpoint_model,
        plain_model=request.plain_model,
        plain_endpoint=plain,
        concurrency=request.concurrency,
    )
    secrets = known_secrets(context.settings)
    return {**result, "failed": [{**row, "reason": redact(row["reason"], secrets)} for row in result["failed"]]}


def request_questions(
    request: Evaluate | PlanRequest | Tune, context: JobContext, last: bool = False
) -> list[dict[str, Any]]:
    """At most `request.limit` questions; with `last` the last built-in ones. Raises NotFound or Conflict."""
    if not request.dataset_id:
        return built_in()[-request.limit :] if last else built_in(request.limit)
    return read_questions(context.input_with_files(Dataset, request.dataset_id).path, request.limit, context)


def run_matrix(request: Matrix, context: JobContext) -> dict[str, Any] | ShardPlan:
    """The cells to measure, or the result. Raises JobFailed if cells failed, Cancelled; measured cells are kept."""
    with context.session() as session:
        planned = matrix_evaluations(session, request, context.job_id)
        query = select(Evaluation).where(Evaluation.matrix_id == context.job_id, Evaluation.state == "ready")
        results = {row.id: brief(row.id, row.result) for row in session.scalars(query)}
    measured = [cell for cell in planned if cell.evaluation_id in results]
    if context.cancel_requested():
        raise Cancelled(f"Stopped at your request; {len(measured)} of {len(planned)} evaluations are kept.")
    context.check_shards("evaluations failed")
    if len(measured) == len(planned):
        return {"cells": len(planned), "matrix_id": context.job_id}
    shards = _shards(context, planned, results)
    return ShardPlan(kind=Evaluate.kind, queue=Evaluate.queue, unit="questions", shards=shards)


def _shards(context: JobContext, planned: Sequence[Evaluate], results: Mapping[str, dict[str, Any]]) -> list[ShardSpec]:
    with db.reading(context.settings) as session:  # many cells take long, and the database has one writer
        estimates = estimate_shards(session, planned, context.settings.home)
        return [
            ShardSpec(
                request=cell.to_json(),
                total=sizes.questions(session, cell.dataset_id, cell.limit) * cell.max_passes,  # like its progress
                result=results.get(cell.evaluation_id),
                name=f"Evaluate {cell_name(session, cell)}"[:200],
                estimated_seconds=estimate.seconds,
                work=estimate.work,
            )
            for cell, estimate in zip(planned, estimates, strict=True)
        ]
