"""Charts that compare trainings: a chart per metric, a line per training. Pure functions of rows."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from app.views.metrics_view import FIRST, NUMBERED, SHARES, UNITS, chart_of, groups_of, title_of
from app.widgets.charts import ChartStyle, Points, line_chart
from app.widgets.elements import notice
from app.widgets.text import tag
from tracking.trainings import MAX_TRAININGS, SelectedTrainings, Training

Metrics = Mapping[str, Mapping[str, Points]]
"""A training's label → its metrics."""
LONGEST = 60 * 33
"""Maximum number of characters of the ids in a URL: more than a page of a list has."""
NAMED = 3


def ids_of(text: str) -> list[str]:
    """The job ids of `?ids=a,b`."""
    return list(dict.fromkeys(row_id.strip()[:64] for row_id in text[:LONGEST].split(",") if row_id.strip()))


def comparison_url(ids: Sequence[str]) -> str:
    """URL of the comparison of these jobs."""
    return "/trainings?" + urlencode({"ids": ",".join(ids)}, safe=",")


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


def charts(metrics: Metrics) -> tuple[str, str]:
    look = ChartStyle(order=list(metrics), near=True)
    drawn: dict[bool, str] = {True: "", False: ""}
    for metric in ordered({name for values in metrics.values() for name in values}):
        series = {label: values[metric] for label, values in metrics.items() if metric in values}
        what = chart_of(metric)[0].partition(",")[0]
        drawn[is_first(metric)] += line_chart(
            title(metric), series, what.startswith(SHARES), UNITS.get(what, ""), look=look
        )
    first, more = (tag("div", html, class_="sp-charts") if html else "" for html in (drawn[True], drawn[False]))
    return first, more


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
    chart, series = chart_of(metric)
    head = title_of(chart)
    return head if head == series else f"{head}, {series}"


def _quoted(jobs: Sequence[Any]) -> str:
    more = f" and {len(jobs) - NAMED} more" if len(jobs) > NAMED else ""
    return ", ".join(f"“{job.name}”" for job in jobs[:NAMED]) + more


def _are(jobs: Sequence[Any]) -> str:
    return "is" if len(jobs) == 1 else "are"
