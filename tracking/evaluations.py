"""Columns for sorting and filtering evaluations, filled from their results; measurements in a model card; replays."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from speculoos.suites import suite_title
from tracking import runs
from tracking.tables import Evaluation, Run, new_id

MAX_CARD_ROWS = 8
FIGURES = ("speedup", "tau", "tokens_per_second", "plain_tokens_per_second")
INTERVALS = {"speedup": "speedup_interval", "tau": "mean_accepted_length_interval"}
REPLAYED = "replayed"  # key in the result of a replay, absent in measurements: {"file", "rows", …}
THIS_INSTALLATION = "this installation"
"""`measured_on` in a checkpoint's figures that an evaluation of this installation has measured. Figures imported with
its files have another value or none."""


def columns_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `Evaluation` that a result fills; None for missing values."""
    measured = {**result, "tau": result.get("mean_accepted_length")}
    columns: dict[str, Any] = {name: finite_number(measured.get(name)) for name in FIGURES}
    for name, key in INTERVALS.items():
        columns[f"{name}_low"], columns[f"{name}_high"] = interval_of(result.get(key))
    return {**columns, "machine": machine_name(result), "dtype": str(result.get("dtype") or "")[:16]}


def measurements(evaluations: Iterable[Evaluation]) -> dict[str, str]:
    """Tau and speedup for a model card, by this engine only: the newest of each question set and setting; and the
    verdict of the newest comparison with each server."""
    evaluations = list(evaluations)
    lines = {f"Compared with {proof['server']}": proof["verdict"] for proof in proofs(evaluations).values()}
    for row in evaluations:
        result = row.result or {}
        if row.state != "ready" or row.tau is None or row.speedup is None or row.source:
            continue
        tree = f", {row.tree}" if row.tree else ""
        questions = f"{suite_title(row.suite) or row.questions or row.name}, {result.get('prompts', '?')} questions"
        name = f"{questions}, temperature {row.temperature:g}{tree}"
        if name not in lines and len(lines) < MAX_CARD_ROWS:
            lines[name] = (
                f"τ {row.tau:.2f}{_interval_text(row.tau_low, row.tau_high)}, "
                f"{row.speedup:.2f} × plain decoding{_interval_text(row.speedup_low, row.speedup_high)}; "
                f"{row.dtype or 'precision not recorded'} on {row.machine or 'a machine not recorded'}, "
                f"{row.measured_at:%Y-%m-%d}"
            )
    return lines


def proofs(evaluations: Iterable[Evaluation]) -> dict[str, dict[str, Any]]:
    """Engine → the newest comparison of this engine with it (`evaluation.agreement`)."""
    by_engine: dict[str, dict[str, Any]] = {}
    for row in evaluations:
        if row.state == "ready" and (proof := (row.result or {}).get("proof")):
            by_engine.setdefault(proof["engine"], proof)
    return by_engine


def card_figures(evaluations: Sequence[Evaluation]) -> dict[str, Any]:
    """The figures in the model card of a draft: `measured` and `loads` of `formats.facts.CardFacts`."""
    return {"measured": measurements(evaluations), "loads": measured_loads(evaluations)}


def measured_loads(evaluations: Iterable[Evaluation]) -> dict[str, Any]:
    """The newest speedups of a server at several loads: `loads`, `server`, `tokens` (draft tokens per step, 0 if the
    server does not publish depths) and `date`. {} without any."""
    for row in evaluations:
        loads = [load for load in (row.result or {}).get("loads") or () if load.get("speedup_interval")]
        if row.state == "ready" and loads:
            depths = (load["drafted"]["acceptance_by_depth"] for load in loads)
            server = ((row.result or {}).get("source") or {}).get("server") or row.source
            tokens = max(map(len, depths))
            return {"loads": loads, "server": server, "tokens": tokens, "date": f"{row.measured_at:%Y-%m-%d}"}
    return {}


def _interval_text(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f} at 95 %)"


def interval_of(value: Any) -> tuple[float | None, float | None]:
    """(low, high) of a list of two values, else (None, None)."""
    low, high = value if isinstance(value, list | tuple) and len(value) == 2 else (None, None)
    return finite_number(low), finite_number(high)


def machine_name(result: Mapping[str, Any]) -> str:
    """The machine of a measurement: name of the GPU or processor; for an endpoint, the kind of server."""
    source = result.get("source")
    if isinstance(source, Mapping):
        return str(source.get("server") or "")[:200]
    machine = result.get("machine")
    machine = machine if isinstance(machine, Mapping) else {}
    return str(machine.get("gpu") or machine.get("processor") or machine.get("device") or "")[:200]


def finite_number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def save_evaluation(
    session: Session, name: str, base_id: str, checkpoint_id: str, config: dict[str, Any], result: dict[str, Any]
) -> Evaluation:
    """Store an evaluation of recorded outputs; `result[REPLAYED]` describes the recording."""
    row = Evaluation(name=name[:200], state="ready", base_id=base_id, checkpoint_id=checkpoint_id or None)
    row.config, row.result = config, result
    session.add(row)
    session.flush()
    return row


def save_responses(session: Session, model: str, answers: Sequence[dict[str, Any]]) -> list[Run]:
    """Store each response (`messages`, `records`, `text`, `summary`) as a finished run in its own chat."""
    created = []
    for answer in answers:
        max_tokens = max(answer["summary"]["tokens"], 1)
        request = {"messages": answer["messages"], "temperature": 0.0, "max_tokens": max_tokens}
        run = runs.create_run(session, "chat", model, request, new_id())
        runs.start_run(session, run.id)
        runs.add_steps(session, run.id, answer["records"])
        runs.finish_run(session, run.id, answer["text"], answer["summary"])
        created.append(run)
    return created


def warnings(result: Mapping[str, Any] | None) -> str:
    """Sentences about a measurement that was disturbed or cut short; "" if it was not."""
    return " ".join(str(text) for key in ("busy", "cut") if (text := (result or {}).get(key)))


def is_replay(result: dict[str, Any]) -> bool:
    """Whether an evaluation's result comes from a recording instead of a measurement."""
    return REPLAYED in (result or {})
