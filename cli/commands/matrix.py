"""speculoos matrix: evaluations of every combination of models, suites, temperatures and trees, each a job."""

from typing import Annotated, Any

import typer

from cli.commands.fields import request_options
from cli.console import Json, Wait, figures, finish
from speculoos.settings import Settings
from speculoos.suites import BUILT_IN_SUITE_NAME
from workers.jobs.matrix import Matrix


@request_options(Matrix, "limit", "max_tokens", "seed")
def matrix(
    model: Annotated[list[str], typer.Option(help="Base model or BASE@CHECKPOINT; once for each.")],
    suite: Annotated[list[str] | None, typer.Option(help="Data set of questions, or built_in; once for each.")] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="0 is greedy; once for each.")] = None,
    top_p: Annotated[list[float] | None, typer.Option(help="Once for each; counts above temperature 0.")] = None,
    tree: Annotated[
        list[str] | None,
        typer.Option(help='own, "chain 4", "tree 4x2x1", ngram, or options as JSON; once for each.'),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="Precision of base and draft; once for each.")] = None,
    name: Annotated[str, typer.Option(help="Name of the job.")] = "",
    estimate: Annotated[bool, typer.Option("--estimate", help="Say how many evaluations and how long, only.")] = False,
    wait: Wait = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Measure every combination. What was measured stays when it is stopped or killed, and it goes on from there."""
    from cli.follow import run_request
    from ops.homes import open_home

    settings = open_home()
    lists = {"temperatures": temperature, "top_ps": top_p, "dtypes": dtype}
    options |= {key: values for key, values in lists.items() if values}
    request = request_of(settings, model, suite or [BUILT_IN_SUITE_NAME], tree or [], options)
    if estimate:
        result = expected(settings, request)
        finish(result, as_json, figures(result))
        return
    result = described(settings, run_request(settings, request, name, wait))
    finish(result, as_json, figures({k: v for k, v in result.items() if k != "evaluations"}))


def request_of(
    settings: Settings, models: list[str], suites: list[str], trees: list[str], options: dict[str, Any]
) -> Any:
    """Names as the ids they mean. Raises NotFound and BadInput."""
    from models.methods.trees import parse
    from tracking import queries
    from tracking.db import reading

    with reading(settings) as session:
        found = [queries.find_model(session, model) for model in models]
        rows = [{"base_id": base.id, "checkpoint_id": draft.id if draft else ""} for base, draft in found]
        sets = ["" if suite == BUILT_IN_SUITE_NAME else queries.find_dataset(session, suite).id for suite in suites]
    drafting = {"drafting": [parse(tree) for tree in trees]} if trees else {}
    return Matrix(models=rows, suites=sets, **drafting, **options)


def expected(settings: Settings, request: Any) -> dict[str, Any]:
    """How many cells, and what they take: `longest_seconds` where a busy machine makes them repeat their questions."""
    from tracking.db import reading
    from workers.jobs import estimates
    from workers.jobs import matrix as asking

    with reading(settings) as session:
        request.check(session)
        cells, missing = len(asking.cells(session, request)), asking.left_out(session, request)
        found = estimates.estimate(session, request, settings.home)
    times = {"seconds": found.seconds, "longest_seconds": found.longest}
    times = {key: round(seconds) if seconds is not None else None for key, seconds in times.items()}
    return {"evaluations": cells, "left_out": missing, **times, "rests_on": found.basis}


def described(settings: Settings, job: Any) -> dict[str, Any]:
    """The job, how many cells are measured, and their figures."""
    from sqlalchemy import select

    from tracking import shards
    from tracking.db import reading
    from tracking.evaluations import FIGURES
    from tracking.tables import Evaluation

    ready = (Evaluation.matrix_id == job.id, Evaluation.state == "ready")
    with reading(settings) as session:
        rows = list(session.scalars(select(Evaluation).where(*ready).order_by(Evaluation.created_at, Evaluation.id)))
        tally = shards.tally(session, job.id)
    asked = ("id", "name", "suite", "questions", "temperature", "top_p", "tree", "dtype")
    cells = [{key: getattr(row, key) for key in (*asked, *FIGURES)} for row in rows]
    return {"job": job.id, "job_state": job.state, "cells": tally.total, "measured": len(rows), "evaluations": cells}
