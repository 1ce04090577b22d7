"""Charts of a job's metrics: grouping of metric names and titles. Pure functions.

Names look like `train/loss` or `eval/top1_head2`: the part before the slash is the split, a number at the end selects
one of several series, and the rest is the metric.
"""

import re
from collections.abc import Mapping
from typing import Any

from app.i18n import N_, t
from app.widgets.charts import ChartStyle, Points, line_chart
from app.widgets.text import tag

NUMBERED = re.compile(r"^(?P<what>.*?)(?:[_/](?P<of>head|depth|step|position)_?(?P<number>\d+))?$")
TITLES = {
    "loss": N_("Loss"),
    "top1": N_("Top-1 accuracy"),
    "accuracy": N_("Accuracy"),
    "acceptance": N_("Acceptance"),
    "tau": N_("Expected mean accepted length (τ)"),
    "lr": N_("Learning rate"),
    "tokens_per_second": N_("Tokens per second"),
    "memory_mb": N_("Memory (MB)"),
    "grad_norm": N_("Gradient norm"),
    "gpu_utilization": N_("GPU utilization"),
    "gpu_memory_gb": N_("GPU memory (GB)"),
    "gpu_temperature": N_("GPU temperature (°C)"),
}
UNITS = {
    "tokens_per_second": "tokens/s",
    "memory_mb": "MB",
    "tau": N_("tokens per verification"),
    "gpu_memory_gb": "GB",
    "gpu_temperature": "°C",
}
SPLITS = {"train": N_("training"), "eval": N_("held out"), "val": N_("held out"), "generate": N_("responses")}
FIRST = ("loss", "top1", "accuracy", "acceptance", "tau")
AXES = {"tokens": "train/tokens", "time": "train/minutes"}
"""Metrics used as x axes of other charts; they have no chart of their own."""
SHARES = ("top1", "accuracy", "acceptance", "coverage", "gpu_utilization")


def chart_of(name: str) -> tuple[str, str]:
    """(chart, series): `eval/top1_head2` → ("top1, held out", "head 2"), `eval/loss` → ("loss", "held out").

    Numbered series have a chart per split; otherwise the splits share one.
    """
    if name.startswith("gpu/"):  # speculoos.gpus.metrics
        _, what, gpu = name.split("/")
        return f"gpu_{what}", gpu
    split, slash, rest = name.rpartition("/")
    match = NUMBERED.match(rest if slash else name)
    what, of, number = match["what"], match["of"], match["number"]
    split_label = SPLITS.get(split, split)
    if of:
        series = f"{of} {{n}}"
        return f"{what}, {split_label}" if split_label else what, t(series, n=number)
    return what, t(split_label) or title_of(what)


def title_of(chart: str) -> str:
    """Title of a chart: `top1, held out` → "Top-1 accuracy, held out"."""
    what, comma, split = chart.partition(", ")
    return t(TITLES.get(what, what.replace("_", " ").capitalize())) + comma + t(split)


def groups_of(metrics: Mapping[str, Points]) -> dict[str, dict[str, Points]]:
    """chart → series → points, the charts of FIRST first."""
    groups: dict[str, dict[str, Points]] = {}
    for name in sorted(set(metrics) - {*AXES.values()}, key=_natural):
        chart, series = chart_of(name)
        groups.setdefault(chart, {})[series] = metrics[name]
    order = {chart: i for i, chart in enumerate(FIRST)}
    return dict(sorted(groups.items(), key=lambda item: (order.get(item[0].partition(",")[0], len(order)), item[0])))


def charts(metrics: Mapping[str, Points]) -> str:
    pictures = [metric_chart(chart, title_of(chart), series) for chart, series in groups_of(metrics).items()]
    return tag("div", "".join(pictures), class_="sp-charts") if any(pictures) else ""


def metric_chart(chart: str, title: str, series: Mapping[str, Points], **look: Any) -> str:
    """The chart of a metric. The lowest loss is the best point, and the highest value of another main metric."""
    what = chart.partition(",")[0]
    style = ChartStyle(best="min" if what == "loss" else "max" if what in FIRST else "", **look)
    return line_chart(title, series, what.startswith(SHARES), t(UNITS.get(what, "")), look=style)


def _natural(name: str) -> list[object]:
    """Sorts head 2 before head 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]
