"""What lists sort and filter evaluations by, as columns: made of an evaluation's result in one place."""

import math
from collections.abc import Mapping
from typing import Any

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
