"""speculoos plan: which drafting pays on a machine, predicted from what steps cost there."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.estimating import EstimateOnly, show_estimate
from cli.commands.fields import request_options
from cli.console import Json, finish, say, table
from speculoos.errors import BadInput
from workers.jobs.requests import PlanRequest


@request_options(PlanRequest)
def plan(
    model: Annotated[str, typer.Argument(help="BASE or BASE@CHECKPOINT: a name, or a base's folder.")],
    machine: Annotated[Path | None, typer.Option(help="Another machine's figures instead of measuring here.")] = None,
    acceptance: Annotated[
        Path | None, typer.Option(help="A trace, or an evaluation's JSON, instead of asking a few questions.")
    ] = None,
    questions: Annotated[str, typer.Option(help="Prompt file, or a data set's name; default the built-in set.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Times each cost is measured.")] = 5,
    keep: Annotated[Path | None, typer.Option(help="File for the measured figures, to plan with elsewhere.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N; default SPECULOOS_DEVICE.")] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Predict the throughput of chains, trees and standalone drafts from what steps cost on a machine."""
    fields = PlanRequest(base_id="", **options)  # checks the options
    if estimate:
        return _estimated(model, questions, machine, options, as_json)

    from evaluation.costs import read_costs
    from evaluation.planner import PlanOptions, predict_plan
    from speculoos.files import write_json

    choices = PlanOptions(
        tuple(fields.batches), tuple(fields.layers), rounds, fields.max_tokens, fields.draft_hidden_size
    )
    costs = read_costs(machine) if machine else None
    curves = read_curves(acceptance) if acceptance else None
    if costs and (curves or "@" not in model):
        found = predict_plan(costs, curves)  # the target may be one that cannot run here
    else:
        found = _measured(model, costs, curves, choices, (questions, fields.limit), device)
    if keep:
        write_json(keep.expanduser(), found["costs"])
    return finish({"model": model, **found}, as_json, words(found))


def _estimated(model: str, questions: str, machine: Path | None, options: dict[str, Any], as_json: bool) -> None:
    """What the plan of a model that is here would take; with another machine's figures nothing is measured."""
    from cli.commands.evaluate import served
    from ops.homes import open_home

    settings = open_home()
    found = served(settings, model, "", questions)
    costs = {"machine": str(machine)} if machine else {}
    show_estimate(settings, PlanRequest(**found, **options, costs=costs), as_json)


def _measured(model: str, costs: Any, curves: Any, choices: Any, asked: tuple[str, int], device: str) -> dict[str, Any]:
    """The plan of a model that is here, which holds its device so that jobs wait."""
    from cli.commands.evaluate import load_questions
    from cli.commands.targets import load_target, resolve
    from evaluation.planner import plan as predict
    from ops.homes import open_home
    from speculoos.reporting import ConsoleReporter
    from tracking.device_lease import device_name, exclusive_device

    settings = open_home()
    ref = resolve(settings, model)
    rows = load_questions(settings, *asked)
    base, draft = load_target(settings, ref, device or settings.device)
    with exclusive_device(settings, device_name(str(base.device)), f"plan-{os.getpid()}") as sharing:
        found = predict(base, draft, rows, ConsoleReporter(), costs=costs, curves=curves, choices=choices)
    if sharing.shared_with and costs is None:
        say(f"Measured beside {sharing.shared_with}: the figures are those of a busy machine.")
    return {**found, "shared_with": sharing.shared_with}


def read_curves(path: Path) -> Any:
    """What a draft got right: step records (JSON lines, of `generate --trace`), or the JSON of an evaluation or replay.
    Raises BadInput."""
    from decoding.step import Step
    from evaluation.shapes import curves_of_shares, curves_of_trace

    path = path.expanduser()
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path.name}: is no JSON ({error}).") from None
    last = lines[-1] if lines and isinstance(lines[-1], dict) else {}
    if isinstance(shares := last.get("acceptance_by_depth"), list):
        if not shares or not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
            raise BadInput(f"{path.name}: acceptance_by_depth holds no shares between 0 and 1.")
        return curves_of_shares(shares)
    return curves_of_trace([Step.of_record(line) for line in lines])


def words(found: dict[str, Any]) -> str:
    """The tables, and the verdict below them."""
    batches = list(found["plain"]["by_batch"])
    rows = [_row(shape, batches) for shape in (found["plain"], *found["shapes"])]
    heads = ("drafting", "τ", "step ms", "drafting ms", *(f"tokens/s of {batch}" for batch in batches))
    parts = [table(rows, heads)]
    if found["standalone"]:
        parts.append(_standalone(found["standalone"]))
    return "\n\n".join(filter(None, (*parts, found["verdict"], found.get("busy"))))


def _row(shape: dict[str, Any], batches: list[str]) -> tuple[Any, ...]:
    one = shape["by_batch"]["1"]
    speeds = (shape["by_batch"][batch] for batch in batches)
    cells = (f"{at['tokens_per_second']:.1f} ({at['speedup']:.2f} ×)" for at in speeds)
    return (shape["name"], f"{shape['tau']:.2f}", f"{one['step_ms']:.1f}", f"{one['draft_ms']:.1f}", *cells)


def _standalone(rows: list[dict[str, Any]]) -> str:
    width = rows[0].get("hidden_size")
    heads = (
        f"layers of hidden size {width}" if width else "standalone layers",
        "ms a token",
        "must be accepted",
        *(f"at {s}" for s in rows[0]["speedups"]),
    )
    cells = []
    for row in rows:
        needed = "cannot pay" if row["needed_acceptance"] is None else f"{row['needed_acceptance']:.0%}"
        speeds = (f"{at['speedup']:.2f} ×" for at in row["speedups"].values())
        cells.append((row["layers"], f"{row['token_ms']:.2f}", needed, *speeds))
    return table(cells, heads)
