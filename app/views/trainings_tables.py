"""Trainings side by side in tables: their figures with intervals, and the settings in which they differ. Pure over
rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from app import forms
from app.views import job_view
from app.views.leaderboard import bars_of, between, settings_words
from app.views.metrics_view import AXES
from app.views.trainings_view import Metrics, TrainingsView, labels
from app.widgets.elements import facts
from app.widgets.formatting import duration, figure, size
from app.widgets.intervals import interval_chart
from app.widgets.picker import table
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag
from models.methods import METHODS, SETTINGS
from speculoos.errors import SpeculoosError
from tracking import trainings
from tracking.evaluations import number
from tracking.tables import Evaluation
from tracking.trainings import Training
from workers.ask.requests import Train, from_json

MOST_MEASURED = 6
"""Ways to measure that are shown; the leaderboard has all."""
DASH = "–"
Values = dict[str, Any]
BY_THE_DATA = "by the data"
"""A setting that nobody chose, so that trainings on other data had another one."""


def figures_table(trainings: Sequence[Training], metrics: Metrics, view: TrainingsView) -> str:
    """What each came to, side by side."""
    names = labels(trainings)
    rows = [*_own_rows(trainings, [metrics.get(name, {}) for name in names]), *_measured_rows(trainings)]
    shown = [[words, *cells] for words, cells in rows if set(cells) != {DASH}]
    heads = {name: _head(each, name, view) for name, each in zip(names, trainings, strict=True)}
    return table(["", *names], shown, "Figures of each training", wide_first=True, named=names, heads=heads)


def bars(trainings: Sequence[Training]) -> str:
    """τ and speedup as bars, of the way to measure that most of them share; "" where none was measured."""
    ways = measured_ways(trainings)
    if not ways:
        return ""
    way, rows = ways[0]
    named = zip(labels(trainings), trainings, strict=True)
    found = [(name, "", rows[each.job.id]) for name, each in named if each.job.id in rows]
    html = interval_chart(f"τ: {way}", bars_of("tau", found))
    html += interval_chart(f"Speedup: {way}", bars_of("speedup", found), " ×")
    return tag("div", html, class_="sp-charts") if html else ""


def settings_table(trainings: Sequence[Training]) -> str:
    """Only what differs; below it, folded, what does not."""
    if len(trainings) < 2:
        return ""
    names, values = labels(trainings), [settings_of(each) for each in trainings]
    differ, equal = sorted_out(values)
    rows = [[safe(key), *(safe(words) for words in row)] for key, row in differ.items()]
    shown = table(["Setting", *names], rows, "Settings that differ", wide_first=True, named=names) if rows else ""
    return (shown or tag("p", "No setting differs.", class_="sp-lead")) + _equal(equal)


def sorted_out(values: Sequence[Values]) -> tuple[dict[str, list[str]], Values]:
    """(what differs: setting → its value in each, what is equal: setting → value). "–": a setting that one lacks."""
    keys = list(dict.fromkeys(key for each in values for key in each))
    rows = {key: [_words(each[key]) if key in each else DASH for each in values] for key in keys}
    differ = {key: row for key, row in rows.items() if len(set(row)) > 1}
    return differ, {key: row[0] for key, row in rows.items() if key not in differ}


def settings_of(training: Training) -> Values:
    """Everything a training was told: what it is made of, then every setting, those left at their default too."""
    request = training.job.request or {}
    base = training.base
    made_of = {
        "base": base.name if base else request.get("base_id", ""),
        "data set": training.data if training.datasets else ", ".join(trainings.dataset_ids(request)),
        "method": METHODS[request["method"]].title if request.get("method") in METHODS else request.get("method", ""),
        "recipe": request.get("recipe") or "none",
    }
    try:
        asked = from_json("train", request)
        assert isinstance(asked, Train)
        told = forms.config_of(asked).to_json()
    except (SpeculoosError, TypeError):  # of a version that had other settings: what it was told then
        told = dict(request.get("settings") or {})
    told.pop("method", None)
    return {**made_of, **{key: BY_THE_DATA if value is None and is_open(key) else value for key, value in told.items()}}


def is_open(key: str) -> bool:
    """Whether the workbench chooses a setting where nobody does."""
    return key in SETTINGS and SETTINGS[key].is_open


def measured_ways(trainings: Sequence[Training]) -> list[tuple[str, dict[str, Evaluation]]]:
    """(how, job id → the newest evaluation made so) of every way the drafts were measured; the ways that most share
    come first, then the newest."""
    ways: dict[str, dict[str, Evaluation]] = {}
    for training in trainings:
        for row in training.evaluations:
            ways.setdefault(way_of(row), {}).setdefault(training.job.id, row)
    newest = {way: max(row.created_at for row in rows.values()) for way, rows in ways.items()}
    return sorted(ways.items(), key=lambda item: (-len(item[1]), -newest[item[0]].timestamp()))


def way_of(row: Evaluation) -> str:
    """What two figures must share to be compared: questions, sampling, tree, where, and on which machine."""
    top_p = f"top-p {row.top_p:g}" if row.top_p != 1 else ""
    return " · ".join(filter(None, (settings_words(row), top_p, row.dtype, row.machine)))


def tokens_of(training: Training, metrics: Mapping[str, Any]) -> float | None:
    """Tokens that it has seen, each pass over the data counted."""
    points = metrics.get(AXES["tokens"])
    seen = (training.checkpoint.figures or {}).get("tokens") if training.checkpoint else None
    return max(number(seen) or 0, points[-1][1] if points else 0) or None


def held_out_tau(training: Training, metrics: Mapping[str, Any]) -> float | None:
    """The best expected τ on held-out conversations: the finished draft's, else the best so far."""
    figures = (training.checkpoint.figures or {}) if training.checkpoint else {}
    curve = [value for _, value in metrics.get("eval/tau", ())]
    return max(curve) if curve else number(figures.get("mean_accepted_length"))


def _own_rows(trainings: Sequence[Training], metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    pairs = list(zip(trainings, metrics, strict=True))
    last = [found.get("train/loss") for found in metrics]
    rows = [
        ("State", [_state(each) for each in trainings]),
        ("Data set", [_data(each) for each in trainings]),
        ("Steps", [f"{each.job.done:,}" if each.job.done else DASH for each in trainings]),
        ("Tokens seen", [f"{seen:,.0f}" if (seen := tokens_of(*pair)) else DASH for pair in pairs]),
        ("Time taken", [_time(each) for each in trainings]),
        ("Last training loss", [figure(points[-1][1], 3) if points else DASH for points in last]),
        ("Expected τ, held out", [figure(held_out_tau(*pair)) for pair in pairs]),
        ("Size", [_size(each) for each in trainings]),
    ]
    return [(labelled(words), cells) for words, cells in rows]


def _measured_rows(trainings: Sequence[Training]) -> list[tuple[str, list[str]]]:
    rows = []
    for way, found in measured_ways(trainings)[:MOST_MEASURED]:
        chosen = [found.get(each.job.id) for each in trainings]
        rows.append((_way("τ", way), [measured_cell(row, "tau") for row in chosen]))
        rows.append((_way("Speedup", way), [measured_cell(row, "speedup", " ×") for row in chosen]))
    return rows


def _way(what: str, how: str) -> str:
    return tag("span", safe(what) + tag("span", safe(how), class_="sp-row-note"))


def measured_cell(row: Evaluation | None, key: str, unit: str = "") -> str:
    """The figure `key` of an evaluation, to which it leads, with its interval."""
    value = getattr(row, key, None)
    if row is None or value is None:
        return DASH
    link = tag("a", safe(f"{value:.2f}{unit}"), href=f"/evaluations?id={row.id}", class_="sp-figure")
    return link + between(row, key)


def _head(training: Training, name: str, view: TrainingsView) -> str:
    """The name, which leads to the job, and the way to a comparison without it."""
    link = tag("a", safe(name), href=f"/jobs?id={training.job.id}", class_="sp-row-name")
    if len(view.ids) < 3:
        return link
    to = view.without(training.job.id).address
    return link + tag("a", "×", href=to, class_="sp-leave-out", aria_label=f"Leave {name} out", title="Leave it out")


def _state(training: Training) -> str:
    job = training.job
    how = job_view.progress_words(job) if job.state in job_view.ACTIVE else ""
    return job_view.state_badge(job) + (tag("span", safe(how), class_="sp-row-note") if how else "")


def _data(training: Training) -> str:
    links = [tag("a", safe(data.name), href=f"/data?id={data.id}") for data in training.datasets]
    return ", ".join(links) or safe("deleted")


def _time(training: Training) -> str:
    took = job_view.seconds(training.job)
    return safe(duration(took)) if took is not None else DASH


def _size(training: Training) -> str:
    draft = training.checkpoint
    return safe(size(draft.size_bytes)) if draft and draft.size_bytes else DASH


def _equal(equal: Values) -> str:
    if not equal:
        return ""
    count = f"{len(equal)} settings are equal" if len(equal) > 1 else "One setting is equal"
    words = tag("summary", safe(f"{count} in all of them"))
    return tag("details", words + facts((key, value or "none") for key, value in equal.items()), class_="sp-fold")


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) if value not in ("", None) else "none"
