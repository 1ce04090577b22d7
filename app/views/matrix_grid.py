"""HTML of an evaluation matrix: a grid with models and trees as rows and suites and temperatures as columns."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.views.job_view import MARKS, STATES
from app.views.leaderboard import address
from app.widgets.elements import link_button
from app.widgets.text import breakable, safe, tag
from models.methods import trees
from speculoos.suites import BUILT_IN_SUITE_NAME, suite_title
from tracking import shards
from tracking.leaderboard import LeaderboardView
from tracking.tables import Base, Checkpoint, Dataset, Job

Names = Mapping[str, str]


def part(session: Session, job: Job) -> str:
    """The part of a matrix's page below its progress."""
    columns = (Job.id, Job.state, Job.done, Job.total, Job.request, Job.result, Job.error)
    cells = session.execute(select(*columns).where(Job.parent_id == job.id).order_by(Job.number)).all()
    tally = shards.tally(session, job.id)
    board = link_button("Show results on the leaderboard", address(LeaderboardView(matrix=job.id)))
    progress = "" if job.progress_note else tag("p", safe(f"{tally.words(job.kind)}."), class_="sp-lead")
    words = progress + tag("div", board, class_="sp-link-row")
    return tag("section", words + grid(cells, _names(session, cells)), class_="sp-shards", aria_label="Cells")


def grid(cells: Sequence[Any], names: Names) -> str:
    """A cell per combination; invalid combinations are empty."""
    placed = {(_row(cell), _column(cell)): cell for cell in cells}
    rows, columns = dict.fromkeys(map(_row, cells)), dict.fromkeys(map(_column, cells))
    head = tag("td") + "".join(tag("th", _column_words(c, names), scope="col") for c in columns)
    body = "".join(
        tag("tr", tag("th", _row_words(row, names), scope="row") + "".join(_grid_cell(placed, row, c) for c in columns))
        for row in rows
    )
    html = tag("table", tag("thead", tag("tr", head)) + tag("tbody", body), class_="sp-matrix", aria_label="Cells")
    return tag("div", html, class_="sp-matrix-wrap", tabindex="0")


def _row(cell: Any) -> tuple[Any, ...]:
    request = cell.request
    return (
        request.get("base_id", ""),
        request.get("checkpoint_id", ""),
        trees.drafting_text(request.get("drafting") or {}),
    )


def _column(cell: Any) -> tuple[Any, ...]:
    request = cell.request
    return (
        request.get("dataset_id", ""),
        request.get("temperature", 0.0),
        request.get("top_p", 1.0),
        request.get("dtype", ""),
    )


def _row_words(row: tuple[Any, ...], names: Names) -> str:
    base, checkpoint, tree = row
    model = names.get(base, base) + (f"@{names.get(checkpoint, checkpoint)}" if checkpoint else "")
    note = tree or ("its own tree" if checkpoint else "no draft")
    return tag("b", breakable(model)) + tag("span", safe(note), class_="sp-row-note")


def _column_words(column: tuple[Any, ...], names: Names) -> str:
    suite, temperature, top_p, dtype = column
    settings = [f"T {temperature:g}", *([f"top-p {top_p:g}"] if top_p != 1 else []), *([dtype] if dtype else [])]
    name = names.get(suite, suite) if suite else suite_title(BUILT_IN_SUITE_NAME)
    return tag("b", breakable(name)) + tag("span", safe(" · ".join(settings)), class_="sp-row-note")


def _grid_cell(placed: Mapping[Any, Any], row: tuple[Any, ...], column: tuple[Any, ...]) -> str:
    cell = placed.get((row, column))
    return tag("td", _cell(cell)) if cell is not None else tag("td", "", class_="sp-no-cell")


def _cell(cell: Any) -> str:
    """A link with the results, or with the state until it is measured."""
    word, tone = STATES.get(cell.state, (cell.state, ""))
    kind = f"sp-cell sp-{tone}" if tone else "sp-cell"
    if cell.state == "SUCCEEDED":
        return _measured(cell.result or {}, kind)
    counted = f"{cell.done:,} of {cell.total:,}" if cell.total and cell.state == "RUNNING" else ""
    title = f"{word}: {cell.error}" if cell.error else word
    words = tag("span", safe(MARKS.get(cell.state, "·")), aria_hidden="true") + tag("span", safe(counted or word))
    return tag("a", words, href=f"/jobs?id={cell.id}", class_=kind, title=title)


def _measured(result: Mapping[str, Any], kind: str) -> str:
    speedup, tau = result.get("speedup"), result.get("mean_accepted_length")
    large = f"{speedup:.2f} ×" if isinstance(speedup, int | float) else "–"
    small = f"τ {tau:.2f}" if isinstance(tau, int | float) else ""
    words = tag("b", safe(large)) + tag("span", safe(small))
    return tag("a", words, href=f"/evaluations?id={result.get('evaluation_id', '')}", class_=kind)


def _names(session: Session, cells: Sequence[Any]) -> dict[str, str]:
    """id → name of base models, checkpoints and data sets of the cells; a suite's name is its title."""
    ids = {str(value) for cell in cells for value in (cell.request or {}).values() if isinstance(value, str)}
    names: dict[str, str] = {}
    for kind in (Base, Checkpoint):
        names |= {i: name for i, name in session.execute(select(kind.id, kind.name).where(kind.id.in_(ids)))}
    for data in session.scalars(select(Dataset).where(Dataset.id.in_(ids))):
        names[data.id] = suite_title((data.config or {}).get("suite") or "") or data.name
    return names
