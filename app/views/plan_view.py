"""HTML of a plan: verdict, charts and tables. Pure functions of the job's result."""

from collections.abc import Mapping
from typing import Any

from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import facts, notice, row_note
from app.widgets.formatting import interval
from app.widgets.picker import table
from app.widgets.text import safe, tag
from tracking.tables import Job

PLAIN = "plain"
Result = Mapping[str, Any]


def report(job: Job) -> str:
    """The result of a finished plan for its job's page; "" for other jobs."""
    result = job.result or {}
    if job.kind != "plan" or "plain" not in result:
        return ""
    tone = "info" if result.get("best", {}).get("1", PLAIN) != PLAIN or not result.get("shapes") else "warn"
    busy = notice(str(result["busy"]), "warn") if result.get("busy") else ""
    verdict = notice(result.get("verdict") or "The plan has no result.", tone)
    figures = speedup_table(result) + speed_chart(result) + shapes_table(result)
    drawn = verdict + figures + standalone_table(result) + conditions(result)
    return tag("section", busy + drawn, class_="sp-stack", id="job-report", aria_label="Plan")


def speedup_table(result: Result) -> str:
    """Speedups by draft shape and batch size, the fastest of each batch size in bold."""
    batches = list(result["plain"]["by_batch"])
    speedups = {shape["name"]: [shape["by_batch"][b]["speedup"] for b in batches] for shape in result["shapes"]}
    if not speedups:
        return ""
    best = [max(column) for column in zip(*speedups.values(), strict=True)]
    rows = [[safe(name), *map(_speedup, values, best)] for name, values in speedups.items()]
    hint = tag("p", "Speedup over plain decoding at the same batch size; bold: the fastest.", class_="sp-hint")
    return hint + table(["Batch size", *batches], rows, "Speedup by draft shape and batch size", named=batches)


def _speedup(value: float, best: float) -> str:
    return tag("b" if value == best else "span", f"{value:.2f}×", class_="sp-off" if value < 1 else None)


def speed_chart(result: Result) -> str:
    chart = line_chart(
        "Tokens per second by batch size",
        _lines(result, list(result["plain"]["by_batch"])),
        unit="tokens/s",
        across="batch size",
        look=ChartStyle(best=True),
    )
    return tag("div", chart, class_="sp-charts")


def _lines(result: Result, batches: list[str]) -> dict[str, list[tuple[float, float]]]:
    """Lines of plain decoding and of the chain and the tree that are best at batch size 1."""
    chosen = {PLAIN: result["plain"]}
    for kind in ("chain", "tree"):
        shapes = [shape for shape in result["shapes"] if shape["kind"] == kind]
        if shapes:
            best = max(shapes, key=lambda shape: shape["by_batch"]["1"]["speedup"])
            chosen[best["name"]] = best
    return {
        name: [(float(b), shape["by_batch"][b]["tokens_per_second"]) for b in batches] for name, shape in chosen.items()
    }


def shapes_table(result: Result) -> str:
    columns = ["Drafting", "τ", "Step (ms)", "Draft (ms)", "Tokens per second", "× plain"]
    return table(
        columns, [_shape(shape) for shape in (result["plain"], *result["shapes"])], "Shapes", named=columns[1:]
    )


def _shape(shape: Mapping[str, Any]) -> list[str]:
    one = shape["by_batch"]["1"]
    numbers = (f"{shape['tau']:.2f}", f"{one['step_ms']:.1f}", f"{one['draft_ms']:.1f}")
    cells = [safe(w) for w in (shape["name"], *numbers, f"{one['tokens_per_second']:.1f}", f"{one['speedup']:.2f}×")]
    between = interval(one, "speedup", "×")
    cells[-1] += row_note(between) if between else ""
    return cells


def standalone_table(result: Result) -> str:
    rows = result.get("standalone") or []
    if not rows:
        return ""
    columns = ["Layers", "Time per token", "Break-even acceptance", *(f"at {share}" for share in rows[0]["speedups"])]
    width = (
        f"of hidden size {rows[0]['hidden_size']}"
        if "hidden_size" in rows[0]
        else "with layers of this base model, same hidden size"
    )
    words = f"Standalone drafts {width}: the acceptance rate needed to break even, and the speedup at some rates."
    lead = tag("p", safe(words), class_="sp-hint")
    return lead + table(columns, [_standalone_row(row) for row in rows], "Standalone drafts", named=columns[1:])


def _standalone_row(row: Mapping[str, Any]) -> list[str]:
    needed = row["needed_acceptance"]
    words = "not worthwhile" if needed is None else f"{needed:.0%}"
    speeds = (f"{at['speedup']:.2f}×" for at in row["speedups"].values())
    return [safe(w) for w in (row["layers"], f"{row['token_ms']:.2f} ms", words, *speeds)]


def conditions(result: Result) -> str:
    """Where the costs were measured, and the number of verifications behind the acceptance rates."""
    acceptance = result.get("acceptance") or {}
    rests = f"{acceptance['verifications']} verifications" if acceptance.get("verifications") else ""
    machine = [(key.replace("_", " ").capitalize(), value) for key, value in (result.get("machine") or {}).items()]
    load = result.get("other_load")
    others = f"{load:.0%} of the CPU time" if isinstance(load, int | float) else ""
    known = [("Costs", result.get("basis", "")), ("Acceptance from", rests), ("Other programs used", others)]
    return facts([*known, *machine])
