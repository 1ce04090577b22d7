"""What lists sort and filter evaluations by, as columns, made of an evaluation's result in one place; and what a model
card says of them."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from speculoos.suites import title
from tracking.tables import Evaluation

MOST_IN_A_CARD = 8
FIGURES = ("speedup", "tau", "tokens_per_second", "plain_tokens_per_second")
INTERVALS = {"speedup": "speedup_interval", "tau": "mean_accepted_length_interval"}


HERE = "this installation"
"""`measured_on` in a checkpoint's figures once an evaluation here has filled them. Figures that came with its files say
something else, or nothing."""


def columns_of(result: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of `Evaluation` that a result fills; None for what it does not say."""
    measured = {**result, "tau": result.get("mean_accepted_length")}
    columns: dict[str, Any] = {name: number(measured.get(name)) for name in FIGURES}
    for name, key in INTERVALS.items():
        columns[f"{name}_low"], columns[f"{name}_high"] = interval_of(result.get(key))
    return {**columns, "machine": machine_words(result), "dtype": str(result.get("dtype") or "")[:16]}


def measurements(evaluations: Iterable[Evaluation]) -> dict[str, str]:
    """Tau and speedup by what was asked, for a model card: of every question set and setting the latest, given newest
    first. Servers and recordings measured something else than this engine with this draft, so they are left out."""
    found: dict[str, str] = {}
    for row in evaluations:
        result = row.result or {}
        if row.state != "ready" or row.tau is None or row.speedup is None or row.source:
            continue
        tree = f", {row.tree}" if row.tree else ""
        asked = f"{title(row.suite) or row.questions or row.name}, {result.get('prompts', '?')} questions"
        name = f"{asked}, temperature {row.temperature:g}{tree}"
        if name not in found and len(found) < MOST_IN_A_CARD:
            found[name] = (
                f"τ {row.tau:.2f}{_between(row.tau_low, row.tau_high)}, "
                f"{row.speedup:.2f} × plain decoding{_between(row.speedup_low, row.speedup_high)}; "
                f"{row.dtype or 'precision not recorded'} on {row.machine or 'a machine not recorded'}, "
                f"{row.measured_at:%Y-%m-%d}"
            )
    return found


def _between(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" ({low:.2f} to {high:.2f} at 95 %)"


def interval_of(value: Any) -> tuple[float | None, float | None]:
    """[low, high], or (None, None) where there is none."""
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None, None
    return number(value[0]), number(value[1])


def machine_words(result: Mapping[str, Any]) -> str:
    """Where it was measured: the GPU's or the processor's name; of an endpoint, what kind of server it is."""
    source = result.get("source")
    if isinstance(source, Mapping):
        return str(source.get("server") or "")[:200]
    machine = result.get("machine")
    machine = machine if isinstance(machine, Mapping) else {}
    return str(machine.get("gpu") or machine.get("processor") or machine.get("device") or "")[:200]


def number(value: Any) -> float | None:
    """A finite number, or None."""
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and math.isfinite(value) else None
