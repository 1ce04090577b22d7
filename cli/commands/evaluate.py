"""`speculoos evaluate`: acceptance and speed on prompts, of a draft in this process or of an endpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.commands.generate import CheckpointOption, Draft
from cli.commands.targets import DeviceOption, dataset, leased_devices, load_target, resolve
from cli.console import Json, figures, finish, say, table
from models.methods import trees
from ops.homes import open_home
from speculoos.errors import BadInput
from speculoos.loads import verdict
from speculoos.reporting import ConsoleReporter
from speculoos.suites import BUILT_IN_SUITE_NAME
from tracking import queries
from tracking.db import reading
from tracking.tables import Evaluation
from workers.jobs.arguments import parse_settings
from workers.jobs.evaluate import Evaluate


@request_options(Evaluate)
def evaluate(
    model: Annotated[
        str, typer.Option(help="Base model: a name, BASE@DRAFT, or a folder; with --endpoint the model it serves.")
    ] = "",
    checkpoint: CheckpointOption = "",
    questions: Annotated[str, typer.Option(help="Prompt file, or a dataset's name; default the built-in set.")] = "",
    draft: Draft = None,
    device: DeviceOption = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Compare speculative with plain decoding on the same prompts, with interleaved steps."""
    from cli.follow import run_request

    request = Evaluate(**options, base_id=model, drafting=trees.read_options(parse_settings(draft or ())))
    request.check_options()
    settings = open_home()
    if estimate or request.endpoint:
        request = request.changed(**row_ids(settings, model, checkpoint, questions))
    if estimate:
        return show_estimate(settings, request, as_json)
    if request.endpoint:
        job = run_request(settings, request)  # stores the result
        with reading(settings) as session:
            row = session.get_one(Evaluation, job.request["evaluation_id"])
        return _finish({"evaluation": row.id, "model": row.name, **row.result}, as_json)

    from evaluation.acceptance import AcceptanceSampling
    from evaluation.acceptance import evaluate as run

    settings = replace(settings, dtype=request.dtype or settings.dtype)
    ref = resolve(settings, model, checkpoint)
    rows = load_questions(settings, questions, request.limit)
    base, loaded = load_target(settings, ref, device or settings.device)
    sampling = AcceptanceSampling(request.temperature, request.top_p, request.seed)
    choices = {"max_tokens": request.max_tokens, "max_minutes": request.max_minutes, "options": request.drafting}
    with leased_devices(settings, base, "evaluate") as sharing:  # so that jobs wait
        measured = run(base, loaded, rows, ConsoleReporter(), sampling=sampling, **choices)
    if sharing.shared_with:
        say(f"The device was shared with {sharing.shared_with}: speeds are too low, and the speedup is not exact.")
    result = {"model": ref.name, "questions": len(rows), "max_tokens": request.max_tokens}
    return _finish({**result, **measured, "shared_with": sharing.shared_with}, as_json)


SHOWN = ("acceptance_by_depth", "mean_accepted_length_interval", "speedup_interval")


def _finish(result: dict[str, Any], as_json: bool) -> None:
    text = figures({k: v for k, v in result.items() if not isinstance(v, list | dict) or k in SHOWN})
    finish(result, as_json, f"{text}\n\n{_loads(result['loads'])}" if result.get("loads") else text)


def _loads(loads: list[dict[str, Any]]) -> str:
    """A table with a line per load and side, and the verdict."""
    heads = ("concurrency", "draft", "tokens/s", "TTFT ms (p95)", "ms per token (p95)", "τ", "speedup", "failed")
    lines = []
    for load in loads:
        between = load["speedup_interval"]
        speedup = f"{load['speedup']:.2f} ({between[0]:.2f} to {between[1]:.2f})" if between else ""
        for side, label in (("drafted", "yes"), ("plain", "no")):
            if values := load[side]:
                times = [
                    f"{each[0]:.0f} ({each[1]:.0f})" if each else "" for each in (values["ttft"], values["inter_token"])
                ]
                tau = f"{values['mean_accepted_length']:.2f}" if values["mean_accepted_length"] else ""
                speed, failed = f"{values['tokens_per_second']:.1f}", values["failed"] or ""
                lines.append([load["concurrency"], label, speed, *times, tau, speedup * (side == "drafted"), failed])
            elif side == "drafted":
                lines.append([load["concurrency"], label, "all requests failed", "", "", "", "", ""])
    return f"{table(lines, heads)}\n{verdict(loads)}".rstrip()


def row_ids(settings: Any, model: str, checkpoint: str, questions: str) -> dict[str, str]:
    """Ids of the model that an endpoint serves and of the prompt set; "" if not specified."""
    ids = {"base_id": "", "checkpoint_id": "", "dataset_id": ""}
    with reading(settings) as session:
        if model:
            base, draft = queries.find_model(session, model)
            draft = queries.find_checkpoint(session, checkpoint, base.id) if checkpoint else draft
            ids |= {"base_id": base.id, "checkpoint_id": draft.id if draft else ""}
        if questions and questions != BUILT_IN_SUITE_NAME:
            ids["dataset_id"] = queries.find_dataset(session, questions).id
    return ids


def load_questions(settings: Any, questions: str, limit: int) -> list[dict[str, Any]]:
    """Prompts (rows with `messages`) from a file, a dataset of this home, or the built-in set."""
    from evaluation.questions import built_in, read_questions

    if not questions or questions == BUILT_IN_SUITE_NAME:
        return built_in(limit)
    if Path(questions).expanduser().is_file():
        return read_questions(Path(questions).expanduser(), limit)
    if "/" in questions or questions.endswith((".jsonl", ".json", ".csv", ".parquet")):
        raise BadInput(f"--questions {questions}: there is no such file.")
    return read_questions(dataset(settings, questions)[0], limit)
