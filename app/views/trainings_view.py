"""Charts that compare trainings: a chart per metric, a line per training, over steps, tokens or time, optionally
smoothed. Pure functions of rows."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from app.views.metrics_view import AXES, FIRST, NUMBERED, SHARES, UNITS, chart_of, groups_of, title_of
from app.widgets.charts import ChartStyle, Points, line_chart
from app.widgets.elements import notice
from app.widgets.text import tag
from tracking.trainings import MAX_TRAININGS, SelectedTrainings, Training

Metrics = Mapping[str, Mapping[str, Points]]
"""A training's label → its metrics."""
X_AXES = {"Steps": "", "Tokens seen": "tokens", "Time": "time"}
"""Label of an x axis → its value in the URL."""
SMOOTHEST = 0.95
LONGEST = 60 * 33
"""Maximum number of characters of the ids in a URL: more than a page of a list has."""
NAMED = 3
TIMES = ((3.0, "seconds", 60.0), (180.0, "minutes", 1.0), (float("inf"), "hours", 1 / 60))
"""(maximum minutes, unit, units per minute)."""


@dataclass(frozen=True)
class TrainingsView:
    """The compared trainings and the options of the charts, as in the URL."""

    ids: tuple[str, ...] = ()
    over: str = ""
    smooth: float = 0.0

    @classmethod
    def of(cls, query: Mapping[str, Any]) -> "TrainingsView":
        """The view in a URL's query; invalid values become the defaults."""
        ids = str(query.get("ids") or "")[:LONGEST].split(",")
        over = str(query.get("over") or "")
        known = tuple(dict.fromkeys(row_id.strip()[:64] for row_id in ids if row_id.strip()))
        return cls(known, over if over in X_AXES.values() else "", smoothing(query.get("smooth")))

    @property
    def address(self) -> str:
        fields = {"ids": ",".join(self.ids), "over": self.over, "smooth": f"{self.smooth:g}" if self.smooth else ""}
        query = urlencode({key: value for key, value in fields.items() if value}, safe=",")
        return f"/trainings?{query}" if query else "/trainings"

    def without(self, row_id: str) -> "TrainingsView":
        """The view without this training."""
        return TrainingsView(tuple(other for other in self.ids if other != row_id), self.over, self.smooth)


def smoothing(value: Any) -> float:
    """The weight of earlier points, from 0 to SMOOTHEST; 0 for an invalid value."""
    try:
        share = round(float(value or 0), 2)
    except (TypeError, ValueError):
        return 0.0
    return min(share, SMOOTHEST) if share > 0 else 0.0


def labels(trainings: Sequence[Training]) -> list[str]:
    """Labels of the trainings in charts and tables: the name, with a number if several share it."""
    names = [training.name for training in trainings]
    places = [names[: place + 1].count(name) for place, name in enumerate(names)]
    numbered = [name if names.count(name) == 1 else f"{name} · {at}" for name, at in zip(names, places, strict=True)]
    if len(set(numbered)) == len(numbered):
        return numbered
    return [f"{name} · {training.job.id}" for name, training in zip(names, trainings, strict=True)]


def missing_jobs_notice(result: SelectedTrainings) -> str:
    """A notice about jobs of the URL that are not shown, and why; otherwise ""."""
    words = []
    if result.others:
        words.append(f"{_quoted(result.others)} {_are(result.others)} no training and cannot be compared.")
    if result.missing:
        subject = "One of these jobs is" if result.missing == 1 else f"{result.missing} of these jobs are"
        words.append(f"{subject} missing: deleted, or the URL is wrong.")
    if result.surplus:
        words.append(
            f"At most {MAX_TRAININGS} trainings can be compared; {_quoted(result.surplus)} {_are(result.surplus)} "
            "left out."
        )
    if len(result.trainings) == 1:
        words.append("Only one training is selected. Select two or more on the page Jobs.")
    return notice(" ".join(words), "warn", "/jobs", "Select on Jobs") if words else ""


def charts(metrics: Metrics, over: str, smooth: float) -> tuple[str, str]:
    """(the main charts, the others), as HTML."""
    names = list(metrics)
    drawn: dict[bool, str] = {True: "", False: ""}
    for metric in ordered({name for values in metrics.values() for name in values}):
        series = {label: values[metric] for label, values in metrics.items() if metric in values}
        drawn[is_first(metric)] += _chart(metric, series, metrics, names, over, smooth)
    first, more = (tag("div", html, class_="sp-charts") if html else "" for html in (drawn[True], drawn[False]))
    return first, more


def without_axis(metrics: Metrics, over: str) -> str:
    """A notice of the trainings without the requested x axis; "" if all have it."""
    missing = [label for label, values in metrics.items() if over and values and AXES[over] not in values]
    if not missing:
        return ""
    names = " and ".join(f"“{label}”" for label in missing)
    return notice(f"{names}: no tokens and times were recorded. Choose “Steps” to show them.", "info")


def ordered(metrics: set[str]) -> list[str]:
    """The metrics in the order of charts, the main ones first."""
    lines_of: dict[str, Points] = {name: () for name in metrics}
    by_chart = {chart_of(name): name for name in lines_of}
    return [by_chart[chart, series] for chart, lines in groups_of(lines_of).items() for series in lines]


def is_first(metric: str) -> bool:
    """Whether the metric is a main one: losses, τ and the accuracy of the first head or depth."""
    split, _, rest = metric.rpartition("/")
    match = NUMBERED.match(rest)
    assert match
    return match["what"] in FIRST and (match["number"] is None or (match["number"] == "1" and split != "train"))


def title(metric: str) -> str:
    """`eval/top1_head2` → "Top-1 accuracy, held out, head 2"."""
    chart, series = chart_of(metric)
    head = title_of(chart)
    return head if head == series else f"{head}, {series}"


def smoothed(points: Points, share: float) -> list[tuple[float, float]]:
    """Exponential moving average with bias correction; `share` is the weight of the earlier average."""
    averages, last, weight = [], 0.0, 0.0
    for x, y in points:
        last, weight = share * last + (1 - share) * y, share * weight + (1 - share)
        averages.append((x, last / weight))
    return averages


def points_over_axis(points: Points, axis: Points) -> list[tuple[float, float]]:
    """The points with x = `axis` at their steps, interpolated linearly between its steps and 0 at step 0."""
    known = [(0.0, 0.0), *((step, value) for step, value in axis if step > 0)]
    return [(_at(known, step), value) for step, value in points]


def _at(known: Sequence[tuple[float, float]], step: float) -> float:
    place = bisect_right(known, step, key=lambda point: point[0])
    if place == len(known):
        return known[-1][1]
    (x0, y0), (x1, y1) = known[place - 1], known[place]
    return y0 + (step - x0) / (x1 - x0) * (y1 - y0)


def _chart(
    metric: str, series: Mapping[str, Points], metrics: Metrics, order: Sequence[str], over: str, smooth: float
) -> str:
    lines, across = _placed(series, metrics, over)
    smooth = smooth if metric.startswith("train/") else 0.0  # held-out points are few and need no smoothing
    drawn = {label: smoothed(points, smooth) for label, points in lines.items()} if smooth else lines
    what = chart_of(metric)[0].partition(",")[0]
    look = ChartStyle(behind=lines if smooth else {}, order=order, near=True)
    return line_chart(title(metric), drawn, what.startswith(SHARES), UNITS.get(what, ""), across, look)


def _placed(series: Mapping[str, Points], metrics: Metrics, over: str) -> tuple[dict[str, Points], str]:
    """The lines over the requested x axis, and its label."""
    if not over:
        return dict(series), "step"
    axes = {label: metrics[label][AXES[over]] for label in series if AXES[over] in metrics[label]}
    lines = {label: points_over_axis(series[label], axis) for label, axis in axes.items()}
    if over == "tokens":
        return {label: [(round(x), y) for x, y in line] for label, line in lines.items()}, "tokens seen"
    most = max((x for line in lines.values() for x, _ in line), default=0.0)
    unit, times = next((unit, times) for bound, unit, times in TIMES if most <= bound)
    return {label: [(x * times, y) for x, y in line] for label, line in lines.items()}, unit


def _quoted(jobs: Sequence[Any]) -> str:
    more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
    return ", ".join(f"“{job.name}”" for job in jobs[:NAMED]) + more


def _are(jobs: Sequence[Any]) -> str:
    return "is" if len(jobs) == 1 else "are"
