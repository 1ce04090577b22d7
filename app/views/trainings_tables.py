"""Tables that compare trainings: figures with intervals, and settings that differ. Pure functions of rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.views import job_view
from app.views.leaderboard import bars_of, figure_cell, settings_words
from app.views.metrics_view import AXES
from app.views.trainings_view import Metrics, comparison_url, labels
from app.widgets.elements import facts
from app.widgets.formatting import duration, figure, size
from app.widgets.intervals import interval_chart
from app.widgets.picker import table
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag
from models.methods import METHODS, SETTINGS
from speculoos.errors import SpeculoosError
from tracking import trainings
from tracking.evaluations import finite_number
from tracking.tables import Evaluation
from tracking.trainings import Training
from workers.jobs.requests import Train, from_json

MOST_MEASURED = 6
"""Maximum number of evaluation settings shown; the leaderboard has all."""
DASH = "–"
Values = dict[str, Any]
DEPENDS_ON_DATA = "depends on the data"
"""Value of an unset setting that the workbench derives from the data."""


def figures_table(trainings: Sequence[Training], metrics: Metrics) -> str:
    names = labels(trainings)
    rows = [*_own_rows(trainings, [metrics.get(name, {}) for name in names]), *_measured_rows(trainings)]
    shown = [[words, *cells] for words, cells in rows if set(cells) != {DASH}]
    ids = [training.job.id for training in trainings]
    heads = {name: _head(row_id, name, ids) for name, row_id in zip(names, ids, strict=True)}
    return table(["", *names], shown, "Figures of each training", wide_first=True, named=names, heads=heads)


def bars(trainings: Sequence[Training]) -> str:
    ways = evaluations_by_setting(trainings)
    if not ways:
        return ""
    way, rows = ways[0]
    pairs = zip(labels(trainings), trainings, strict=True)
    measured = [(name, "", rows[training.job.id]) for name, training in pairs if training.job.id in rows]
    html = interval_chart(f"τ: {way}", bars_of("tau", measured))
    html += interval_chart(f"Speedup: {way}", bars_of("speedup", measured), " ×")
    return tag("div", html, class_="sp-charts") if html else ""


def settings_table(trainings: Sequence[Training]) -> str:
    """Table of the settings that differ; equal settings below in a closed section."""
    if len(trainings) < 2:
        return ""
    names, values = labels(trainings), [settings_of(training) for training in trainings]
    differ, equal = split_settings(values)
    rows = [[safe(key), *(safe(words) for words in row)] for key, row in differ.items()]
    shown = table(["Setting", *names], rows, "Settings that differ", wide_first=True, named=names) if rows else ""
    return (shown or tag("p", "All settings are equal.", class_="sp-lead")) + _equal(equal)


def split_settings(values: Sequence[Values]) -> tuple[dict[str, list[str]], Values]:
    """(differing settings → value of each training, equal settings → value). "–": the training lacks the setting."""
    keys = list(dict.fromkeys(key for settings in values for key in settings))
    rows = {key: [_words(settings[key]) if key in settings else DASH for settings in values] for key in keys}
    differ = {key: row for key, row in rows.items() if len(set(row)) > 1}
    return differ, {key: row[0] for key, row in rows.items() if key not in differ}


def settings_of(training: Training) -> Values:
    """All inputs of a training: base model, data, method, recipe, then every setting including defaults."""
    request = training.job.request or {}
    base = training.base
    inputs = {
        "base": base.name if base else request.get("base_id", ""),
        "data set": training.data if training.datasets else ", ".join(trainings.dataset_ids(request)),
        "method": METHODS[request["method"]].title if request.get("method") in METHODS else request.get("method", ""),
        "recipe": request.get("recipe") or "none",
    }
    try:
        train = from_json("train", request)
        assert isinstance(train, Train)
        settings = train.config.to_json()
    except (SpeculoosError, TypeError):  # from a version with other settings
        settings = dict(request.get("settings") or {})
    settings.pop("method", None)
    return {
        **inputs,
        **{key: DEPENDS_ON_DATA if value is None and is_open(key) else value for key, value in settings.items()},
    }


def is_open(key: str) -> bool:
    return key in SETTINGS and SETTINGS[key].is_open


def evaluations_by_setting(trainings: Sequence[Training]) -> list[tuple[str, dict[str, Evaluation]]]:
    """(evaluation settings, job id → newest evaluation with them), sorted by number of trainings, then newest first."""
    ways: dict[str, dict[str, Evaluation]] = {}
    for training in trainings:
        for row in training.evaluations:
            ways.setdefault(evaluation_setting(row), {}).setdefault(training.job.id, row)
    newest = {way: max(row.created_at for row in rows.values()) for way, rows in ways.items()}
    return sorted(ways.items(), key=lambda item: (-len(item[1]), -newest[item[0]].timestamp()))


def evaluation_setting(row: Evaluation) -> str:
    """Settings that comparable evaluations share: questions, sampling, tree, precision, server, machine."""
    top_p = f"top-p {row.top_p:g}" if row.top_p != 1 else ""
    return " · ".join(filter(None, (settings_words(row), top_p, row.dtype, row.machine)))


def tokens_of(training: Training, metrics: Mapping[str, Any]) -> float | None:
    """Tokens seen in training, counting every pass over the data; None if unknown."""
    points = metrics.get(AXES["tokens"])
    seen = (training.checkpoint.figures or {}).get("tokens") if training.checkpoint else None
    return max(finite_number(seen) or 0, points[-1][1] if points else 0) or None


def held_out_tau(training: Training, metrics: Mapping[str, Any]) -> float | None:
    """The best expected τ on held-out conversations: of the curve, otherwise of the checkpoint's figures."""
    figures = (training.checkpoint.figures or {}) if training.checkpoint else {}
    curve = [value for _, value in metrics.get("eval/tau", ())]
    return max(curve) if curve else finite_number(figures.get("mean_accepted_length"))


def _own_rows(trainings: Sequence[Training], metrics: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[str]]]:
    pairs = list(zip(trainings, metrics, strict=True))
    last = [values.get("train/loss") for values in metrics]
    rows = [
        ("State", [_state(training) for training in trainings]),
        ("Data set", [_data(training) for training in trainings]),
        ("Steps", [f"{training.job.done:,}" if training.job.done else DASH for training in trainings]),
        ("Tokens seen", [f"{seen:,.0f}" if (seen := tokens_of(*pair)) else DASH for pair in pairs]),
        ("Time taken", [_time(training) for training in trainings]),
        ("Last training loss", [figure(points[-1][1], 3) if points else DASH for points in last]),
        ("Expected τ, held out", [figure(held_out_tau(*pair)) for pair in pairs]),
        ("Size", [_size(training) for training in trainings]),
    ]
    return [(labelled(words), cells) for words, cells in rows]


def _measured_rows(trainings: Sequence[Training]) -> list[tuple[str, list[str]]]:
    rows = []
    for way, evaluations in evaluations_by_setting(trainings)[:MOST_MEASURED]:
        chosen = [evaluations.get(training.job.id) for training in trainings]
        rows.append((_way("τ", way), [figure_cell(row, "tau", linked=True) for row in chosen]))
        rows.append((_way("Speedup", way), [figure_cell(row, "speedup", " ×", linked=True) for row in chosen]))
    return rows


def _way(what: str, how: str) -> str:
    return tag("span", safe(what) + tag("span", safe(how), class_="sp-row-note"))


def _head(row_id: str, name: str, ids: Sequence[str]) -> str:
    """The name, linked to the job, and a link that removes it from the comparison."""
    link = tag("a", safe(name), href=f"/jobs?id={row_id}", class_="sp-row-name")
    if len(ids) < 3:
        return link
    to = comparison_url([other for other in ids if other != row_id])
    return link + tag(
        "a", "×", href=to, class_="sp-leave-out", aria_label=f"Remove {name}", title="Remove from the comparison"
    )


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
    words = tag("summary", safe(f"{count} in all trainings"))
    return tag("details", words + facts((key, value or "none") for key, value in equal.items()), class_="sp-fold")


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) if value not in ("", None) else "none"
