"""HTML of plans: the list, and one plan with its verdict, charts and tables. Pure functions of rows of jobs."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.views import job_rows, job_view
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import facts, notice, row_note
from app.widgets.formatting import ago, interval
from app.widgets.list_query import ALL_ROWS, ListQuery, empty_list_html, filtered_query
from app.widgets.picker import pager, pick, table
from app.widgets.surface import surface
from app.widgets.text import safe, tag
from tracking import listing
from tracking.paging import page
from tracking.tables import Job

COLUMNS = ["Plan", "Verdict", "When"]
PLAIN = "plain"


def signature(session: Session) -> str:
    """A text that changes when a plan changes."""
    count, version = session.execute(select(func.count(), func.sum(Job.version)).where(Job.kind == "plan")).one()
    return f"{count}.{version}"


def plans_table(session: Session, which: ListQuery = ALL_ROWS, place: str = "") -> str:
    """A page of the plans that match `which`."""
    newest = select(Job).where(Job.kind == "plan").order_by(Job.created_at.desc(), Job.id)
    shown = page(session, filtered_query(newest, which), place)
    if not shown.rows:
        begin = "A plan measures step times on this machine and predicts which draft is worthwhile before training."
        return empty_list_html(which, "plan", begin)
    return table(COLUMNS, [_row(job) for job in shown.rows], "Plans") + pager("plans", shown, which)


def _row(job: Job) -> list[str]:
    done = job.state == "SUCCEEDED" and job.result.get("verdict")
    words = safe(job.result["verdict"]) if done else job_view.state_badge(job)
    return [pick("plans", job.id, safe(job.name), class_="sp-row-name"), words, safe(ago(job.created_at))]


def head(session: Session, job: Job) -> str:
    """Name, progress or verdict, and a link to the job."""
    result = job.result or {}
    if job.kind != "plan":
        return notice("This job is not a plan.", "warn", f"/jobs?id={job.id}", "Open it")
    parts = [job_rows.title(job)]
    if job.state == "SUCCEEDED":
        if result.get("busy"):
            parts.append(notice(str(result["busy"]), "warn"))
        tone = "info" if result.get("best", {}).get("1", PLAIN) != PLAIN or not result.get("shapes") else "warn"
        parts.append(notice(result.get("verdict") or "The plan has no result.", tone))
    else:
        waits = job_rows.waits_words(listing.Queues(session), job)
        parts += [job_view.progress(job), job_view.banner(job, waits)]
    parts.append(job_view.job_line(job))
    return tag("div", "".join(parts), class_="sp-stack", data_state=job.state)


def pictures(job: Job) -> str:
    """Heat map of speedups over draft shape and batch size, and tokens per second by batch size."""
    result = _result(job)
    if not result:
        return ""
    batches = list(result["plain"]["by_batch"])
    rows = {shape["name"]: [shape["by_batch"][b]["speedup"] for b in batches] for shape in result["shapes"]}
    hint = "Speedup over plain decoding at the same batch size; framed: the fastest of a column."
    drawn = [surface("Speedup by draft shape and batch size", rows, batches, hint) if rows else ""]
    drawn.append(
        line_chart(
            "Tokens per second by batch size",
            _lines(result, batches),
            unit="tokens/s",
            across="batch size",
            look=ChartStyle(best=True),
        )
    )
    return tag("div", "".join(drawn), class_="sp-charts")


def _lines(result: Mapping[str, Any], batches: list[str]) -> dict[str, list[tuple[float, float]]]:
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


def shapes_table(job: Job) -> str:
    """Table of predictions per shape at batch size 1."""
    result = _result(job)
    if not result:
        return ""
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


def standalone_table(job: Job) -> str:
    """Table of standalone drafts with some of the base model's layers: the acceptance rate to break even."""
    rows = _result(job).get("standalone") or []
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


def conditions(job: Job) -> str:
    """Where the costs were measured, and the number of verifications behind the acceptance rates."""
    result = _result(job)
    if not result:
        return ""
    acceptance = result.get("acceptance") or {}
    rests = f"{acceptance['verifications']} verifications" if acceptance.get("verifications") else ""
    machine = [(key.replace("_", " ").capitalize(), value) for key, value in (result.get("machine") or {}).items()]
    load = result.get("other_load")
    others = f"{load:.0%} of the CPU time" if isinstance(load, int | float) else ""
    known = [("Costs", result.get("basis", "")), ("Acceptance from", rests), ("Other programs used", others)]
    return facts([*known, *machine])


def _result(job: Job) -> Mapping[str, Any]:
    """The result of a finished plan; {} for other jobs."""
    result = job.result or {}
    return result if job.kind == "plan" and "plain" in result else {}
