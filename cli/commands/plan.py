"""`speculoos plan`: predicts from the cost of steps which drafting is faster on a machine."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.commands.evaluate import load_questions, row_ids
from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.commands.targets import DeviceOption, leased_devices, load_target, resolve
from cli.console import Json, finish, say, table
from ops.homes import open_home
from speculoos.errors import BadInput
from speculoos.files import write_json
from speculoos.reporting import ConsoleReporter
from workers.jobs.requests import PlanRequest


@request_options(PlanRequest)
def plan(
    model: Annotated[str, typer.Argument(help="BASE or BASE@DRAFT: a name, or the folder of a base model.")],
    machine: Annotated[Path | None, typer.Option(help="File with costs of another machine.")] = None,
    acceptance: Annotated[
        Path | None, typer.Option(help="Trace, or JSON of an evaluation, instead of measuring acceptance.")
    ] = None,
    questions: Annotated[str, typer.Option(help="Prompt file, or a dataset's name; default the built-in set.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Measurements per cost.")] = 5,
    keep: Annotated[Path | None, typer.Option(help="File to write the measured costs to, for --machine.")] = None,
    device: DeviceOption = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Predict the throughput of chains, trees and standalone drafts from the cost of steps on a machine."""
    fields = PlanRequest(base_id="", **options)  # checks the options
    if estimate:
        settings = open_home()
        ids, costs = row_ids(settings, model, "", questions), {"machine": str(machine)} if machine else {}
        return show_estimate(settings, fields.changed(**ids, costs=costs), as_json)

    from evaluation.costs import read_costs
    from evaluation.planner import PlanOptions, predict_plan

    choices = PlanOptions(tuple(fields.batches), tuple(fields.layers), rounds, fields.max_tokens)
    costs = read_costs(machine) if machine else None
    curves = read_curves(acceptance) if acceptance else None
    if costs and (curves or "@" not in model):
        result = predict_plan(costs, curves)  # the base model may be too large for this machine
    else:
        result = _measure_plan(model, costs, curves, choices, (questions, fields.limit), device)
    if keep:
        write_json(keep.expanduser(), result["costs"])
    return finish({"model": model, **result}, as_json, plan_text(result))


def _measure_plan(
    model: str, costs: Any, curves: Any, choices: Any, prompts: tuple[str, int], device: str
) -> dict[str, Any]:
    """The plan of a model of this home, with the device lease, so that jobs wait. `prompts`: (set, limit)."""
    from evaluation.planner import plan as predict

    settings = open_home()
    ref = resolve(settings, model)
    rows = load_questions(settings, *prompts)
    base, draft = load_target(settings, ref, device or settings.device)
    with leased_devices(settings, base, "plan") as sharing:
        result = predict(base, draft, rows, ConsoleReporter(), costs=costs, curves=curves, options=choices)
    if sharing.shared_with and costs is None:
        say(f"The device was shared with {sharing.shared_with}: the costs are those of a busy machine.")
    return {**result, "shared_with": sharing.shared_with}


def read_curves(path: Path) -> Any:
    """Acceptance curves from step records (JSON lines of `generate --trace`) or from the JSON of an evaluation or
    replay. Raises BadInput."""
    from decoding.step import Step
    from evaluation.shapes import curves_of_rates, curves_of_trace

    path = path.expanduser()
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror or error}).") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path.name}: is not valid JSON ({error}).") from None
    last = lines[-1] if lines and isinstance(lines[-1], dict) else {}
    if isinstance(shares := last.get("acceptance_by_depth"), list):
        if not shares or not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
            raise BadInput(f"{path.name}: acceptance_by_depth must be a list of numbers from 0 to 1.")
        return curves_of_rates(shares)
    return curves_of_trace([Step.of_record(line) for line in lines])


def plan_text(result: dict[str, Any]) -> str:
    """The plan as tables with the verdict below."""
    batches = list(result["plain"]["by_batch"])
    rows = []
    for shape in (result["plain"], *result["shapes"]):
        by_batch = shape["by_batch"]
        speeds = (f"{by_batch[b]['tokens_per_second']:.1f} ({by_batch[b]['speedup']:.2f} ×)" for b in batches)
        step, drafting = f"{by_batch['1']['step_ms']:.1f}", f"{by_batch['1']['draft_ms']:.1f}"
        rows.append((shape["name"], f"{shape['tau']:.2f}", step, drafting, *speeds))
    heads = ("drafting", "τ", "step ms", "drafting ms", *(f"tokens/s at batch {batch}" for batch in batches))
    parts = [table(rows, heads)]
    if standalone := result["standalone"]:
        cells = []
        for row in standalone:
            needed = "never faster" if row["needed_acceptance"] is None else f"{row['needed_acceptance']:.0%}"
            speeds = (f"{at['speedup']:.2f} ×" for at in row["speedups"].values())
            cells.append((row["layers"], f"{row['token_ms']:.2f}", needed, *speeds))
        heads = (
            "standalone layers",
            "ms per token",
            "required acceptance",
            *(f"at {share}" for share in standalone[0]["speedups"]),
        )
        parts.append(table(cells, heads))
    return "\n\n".join(filter(None, (*parts, result["verdict"], result.get("busy"))))
