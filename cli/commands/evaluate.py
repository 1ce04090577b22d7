"""speculoos evaluate: acceptance and speed on questions, measured in this process, or of what an endpoint serves."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.estimating import EstimateOnly, show_estimate
from cli.commands.generate import CheckpointOption, Draft
from cli.console import Json, figures, finish, say
from speculoos.errors import BadInput
from speculoos.settings import DTYPES
from speculoos.suites import BUILT_IN


def evaluate(
    model: Annotated[
        str, typer.Option(help="Base model: a name, BASE@CHECKPOINT, or a folder; with --endpoint what that serves.")
    ] = "",
    checkpoint: CheckpointOption = "",
    questions: Annotated[str, typer.Option(help="Prompt file, or a data set's name; default the built-in set.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most questions.")] = 20,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most new tokens a turn.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample among the likeliest that hold this much of the mass.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of sampling.")] = 0,
    dtype: Annotated[str, typer.Option(help="Precision of base and draft; default SPECULOOS_DTYPE.")] = "",
    endpoint: Annotated[str, typer.Option(help="Endpoint of settings.toml to measure; the result is stored.")] = "",
    endpoint_model: Annotated[str, typer.Option(help="Model name to ask that endpoint for.")] = "",
    plain_model: Annotated[
        str, typer.Option(help="What that endpoint calls the same base without a draft, for a speedup.")
    ] = "",
    draft: Draft = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; default SPECULOOS_DEVICE.")] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
) -> None:
    """Measure drafting against plain decoding: the same questions, step by step in turns."""
    from cli.commands.targets import resolve
    from models.methods import trees
    from ops.homes import open_home
    from workers.ask.command_line import parse_settings
    from workers.ask.requests import Evaluate

    sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
    settings = open_home()
    if endpoint:
        if draft or dtype:
            raise BadInput("A server drafts as it was started; leave --draft and --dtype out.")
        names = {"endpoint": endpoint, "endpoint_model": endpoint_model, "plain_model": plain_model}
        given = {**names, **sampling, "limit": limit, "max_tokens": max_tokens}
        if estimate:
            request = Evaluate(**served(settings, model, checkpoint, questions), **given)
            return show_estimate(settings, request, as_json)
        return _finish(measure_endpoint(settings, model, checkpoint, questions, given), as_json)
    if not model:
        raise BadInput("Say what to measure: --model NAME, or --endpoint NAME.")
    if dtype and dtype not in DTYPES:
        raise BadInput(f"--dtype {dtype}: expected one of {', '.join(DTYPES)}.")
    options = trees.read_options(parse_settings(draft or ()))
    if estimate:
        given = {**sampling, "limit": limit, "max_tokens": max_tokens, "drafting": options, "dtype": dtype}
        request = Evaluate(**served(settings, model, checkpoint, questions), **given)
        return show_estimate(settings, request, as_json)
    settings = replace(settings, dtype=dtype or settings.dtype)
    ref = resolve(settings, model, checkpoint)
    rows = load_questions(settings, questions, limit)
    result = {"model": ref.name, "questions": len(rows), "max_tokens": max_tokens}
    result |= measure(settings, ref, rows, max_tokens, options, device or settings.device, sampling)
    if result["shared_with"]:
        say(f"Measured beside {result['shared_with']}: the speeds are lower than alone, the ratio is not exact.")
    return _finish(result, as_json)


SHOWN = ("acceptance_by_depth", "mean_accepted_length_interval", "speedup_interval")


def _finish(result: dict[str, Any], as_json: bool) -> None:
    finish(result, as_json, figures({k: v for k, v in result.items() if not isinstance(v, list | dict) or k in SHOWN}))


def measure(
    settings: Any,
    ref: Any,
    questions: list[dict[str, Any]],
    max_tokens: int,
    options: dict[str, Any],
    device: str,
    sampling: dict[str, Any],
) -> dict[str, Any]:
    """Load base and draft, and run `evaluation.acceptance.evaluate` on them, holding the device so that jobs wait.
    `shared_with` names what held it already."""
    from cli.commands.targets import load_target
    from evaluation.acceptance import AcceptanceSampling
    from evaluation.acceptance import evaluate as run
    from speculoos.reporting import ConsoleReporter
    from tracking.device_lease import alone, device_name

    base, draft = load_target(settings, ref, device)
    with alone(settings, device_name(str(base.device)), f"evaluate-{os.getpid()}") as sharing:
        given = {"max_tokens": max_tokens, "options": options, "sampling": AcceptanceSampling(**sampling)}
        result = run(base, draft, questions, ConsoleReporter(), **given)
    return {**result, "shared_with": sharing.shared_with}


def measure_endpoint(
    settings: Any, model: str, checkpoint: str, questions: str, given: dict[str, Any]
) -> dict[str, Any]:
    """Measure an endpoint in a job, which stores what it finds."""
    from cli.follow import run_request
    from tracking.db import reading
    from tracking.tables import Evaluation
    from workers.ask.requests import Evaluate

    job = run_request(settings, Evaluate(**served(settings, model, checkpoint, questions), **given))
    with reading(settings) as session:
        row = session.get_one(Evaluation, job.request["evaluation_id"])
    return {"evaluation": row.id, "model": row.name, **row.result}


def served(settings: Any, model: str, checkpoint: str, questions: str) -> dict[str, str]:
    """Ids of what an endpoint serves and of the question set, "" for what was not named."""
    from tracking import queries
    from tracking.db import reading

    found = {"base_id": "", "checkpoint_id": "", "dataset_id": ""}
    with reading(settings) as session:
        if model:
            base, draft = queries.find_model(session, model)
            draft = queries.find_checkpoint(session, checkpoint, base.id) if checkpoint else draft
            found |= {"base_id": base.id, "checkpoint_id": draft.id if draft else ""}
        if questions and questions != BUILT_IN:
            found["dataset_id"] = queries.find_dataset(session, questions).id
    return found


def load_questions(settings: Any, questions: str, limit: int) -> list[dict[str, Any]]:
    """Rows with `messages` from a file, a data set of this home, or the built-in set."""
    from cli.commands.targets import dataset
    from evaluation.questions import built_in, read_questions

    if not questions or questions == BUILT_IN:
        return built_in(limit)
    if Path(questions).expanduser().is_file():
        return read_questions(Path(questions).expanduser(), limit)
    if "/" in questions or questions.endswith((".jsonl", ".json", ".csv", ".parquet")):
        raise BadInput(f"--questions {questions}: there is no such file.")
    return read_questions(dataset(settings, questions)[0], limit)
