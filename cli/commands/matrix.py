"""`speculoos matrix`: evaluates every combination of models, suites, temperatures and trees, each in a job."""

from typing import Annotated, Any

import typer
from sqlalchemy import select

from cli.commands.fields import request_options
from cli.console import Json, Wait, figures, finish
from models.methods.trees import parse
from ops.homes import open_home
from speculoos.settings import Settings
from speculoos.suites import BUILT_IN_SUITE_NAME
from tracking import queries, shards
from tracking.db import reading
from tracking.evaluations import FIGURES
from tracking.tables import Evaluation
from workers.jobs.matrix import Matrix, matrix_evaluations


@request_options(Matrix, "limit", "max_tokens", "seed")
def matrix(
    model: Annotated[list[str], typer.Option(help="Base model or BASE@DRAFT; may be repeated.")],
    suite: Annotated[list[str] | None, typer.Option(help="Dataset of prompts, or built_in; may be repeated.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="0 is greedy; may be repeated.")] = None,
    top_p: Annotated[list[float] | None, typer.Option(help="Used above temperature 0; may be repeated.")] = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(help='own, "chain 4", "tree 4x2x1", ngram, mtp, or options as JSON; may be repeated.'),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Precision of base and draft; may be repeated.")] = None,
    name: Annotated[str, typer.Option(help="Name of the job.")] = "",
    estimate: Annotated[bool, typer.Option("--estimate", help="Only estimate number and time.")] = False,
    wait: Wait = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Evaluate every combination. Finished evaluations are kept when the job stops; a retry continues from there."""
    from cli.follow import run_request

    settings = open_home()
    lists = {"temperatures": temperature, "top_ps": top_p, "dtypes": dtype}
    lists["drafting"] = [parse(each) for each in tree or ()]
    with reading(settings) as session:
        pairs = [queries.find_model(session, each) for each in model]
        rows = [{"base_id": base.id, "checkpoint_id": draft.id if draft else ""} for base, draft in pairs]
        sets = [queries.find_dataset(session, s).id if s != BUILT_IN_SUITE_NAME else "" for s in suite or ()] or [""]
    request = Matrix(models=rows, suites=sets, **options, **{key: values for key, values in lists.items() if values})
    if estimate:
        result = expected(settings, request)
        finish(result, as_json, figures(result))
        return
    job = run_request(settings, request, name, wait)
    ready = (Evaluation.matrix_id == job.id, Evaluation.state == "ready")
    with reading(settings) as session:
        rows = list(session.scalars(select(Evaluation).where(*ready).order_by(Evaluation.created_at, Evaluation.id)))
        total = shards.tally(session, job.id).total
    keys = ("id", "name", "suite", "questions", "temperature", "top_p", "tree", "dtype", *FIGURES)
    result = {"job": job.id, "job_state": job.state, "cells": total, "measured": len(rows)}
    evaluations = [{key: getattr(row, key) for key in keys} for row in rows]
    finish({**result, "evaluations": evaluations}, as_json, figures(result))


def expected(settings: Settings, request: Any) -> dict[str, Any]:
    """Number of cells and their time."""
    from workers.jobs.submit import check_and_estimate

    estimated = check_and_estimate(settings, request)
    with reading(settings) as session:
        count = len(matrix_evaluations(session, request))
    seconds = round(estimated.seconds) if estimated.seconds is not None else None
    return {"evaluations": count, "seconds": seconds, "rests_on": estimated.basis}
