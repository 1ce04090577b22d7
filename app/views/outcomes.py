"""Short results of finished jobs for the list: rows, responses, loss and τ, τ and speedup. Pure functions of rows."""

from collections.abc import Callable, Mapping
from typing import Any

from app.views.checkpoint_rows import method_words
from app.widgets.formatting import size
from tracking.evaluations import finite_number
from tracking.tables import Job

Result = Mapping[str, Any]


def outcome(job: Job) -> str:
    describe = RESULT_TEXTS.get(job.kind)
    return describe(job.result) if describe and job.state == "SUCCEEDED" and job.result else ""


def _rows(result: Result) -> str:
    bad = f", {result['bad_rows']:,} skipped" if result.get("bad_rows") else ""
    return f"{result['rows']:,} rows{bad}" if isinstance(result.get("rows"), int) else ""


def _answers(result: Result) -> str:
    tokens = result.get("tokens")
    counted = f" · {tokens:,} tokens" if isinstance(tokens, int) and tokens else ""
    return f"{result['rows']:,} responses{counted}" if isinstance(result.get("rows"), int) else ""


def _trained(result: Result) -> str:
    tau, loss = finite_number(result.get("mean_accepted_length")), finite_number(result.get("loss"))
    parts = [f"held-out τ {tau:.2f}" if tau else "", f"loss {loss:.3f}" if loss is not None else ""]
    return " · ".join(filter(None, parts)) or _steps(result)


def _steps(result: Result) -> str:
    return f"{result['step']:,} steps" if isinstance(result.get("step"), int) else ""


def _measured(result: Result) -> str:
    tau, speedup = (
        finite_number(result.get("mean_accepted_length") or result.get("tau")),
        finite_number(result.get("speedup")),
    )
    return " · ".join(filter(None, (f"τ {tau:.2f}" if tau else "", f"{speedup:.2f} ×" if speedup else "")))


def _replayed(result: Result) -> str:
    tau, speedup = finite_number(result.get("tau")), finite_number(result.get("projected_speedup"))
    return " · ".join(filter(None, (f"τ {tau:.2f}" if tau else "", f"{speedup:.2f} × projected" if speedup else "")))


def _matrix(result: Result) -> str:
    return f"{result['cells']:,} cells" if isinstance(result.get("cells"), int) else ""


def _verdict(result: Result) -> str:
    return str(result.get("verdict") or "")


def _export(result: Result) -> str:
    return f"{result.get('format', '')}, {size(result['bytes'])}" if finite_number(result.get("bytes")) else ""


def _draft(result: Result) -> str:
    return method_words(str(result.get("method") or ""))


RESULT_TEXTS: dict[str, Callable[[Result], str]] = {
    "import_prompts": _rows,
    "import_answered": _rows,
    "generate_data": _answers,
    "generate_shard": _answers,
    "train": _trained,
    "evaluate": _measured,
    "matrix": _matrix,
    "plan": _verdict,
    "tune": _verdict,
    "replay": _replayed,
    "export": _export,
    "import_draft": _draft,
    "fetch_model": lambda result: "added",
}
