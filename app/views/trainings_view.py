"""Comparison of trainings: a chart per metric with a line per training, tables of figures with intervals and of
settings that differ. Functions of rows."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from sqlalchemy.orm import Session

from app.i18n import plural, t
from app.views import job_view
from app.views.leaderboard import figure_cell, settings_text, tree_text
from app.views.metrics_view import AXES, FIRST, NUMBERED, chart_of, groups_of, metric_chart, title_of
from app.widgets.charts import Points, legend
from app.widgets.elements import facts, fold, notice, row_note
from app.widgets.formatting import duration, figure, size
from app.widgets.picker import table
from app.widgets.terms import label as labelled
from app.widgets.text import safe, tag
from models.methods import METHODS, SETTINGS
from speculoos.errors import SpeculoosError
from tracking import trainings as rows_of_trainings
from tracking.evaluations import finite_number
from tracking.tables import Evaluation
from tracking.trainings import MAX_TRAININGS, SelectedTrainings, Training
from workers.jobs.requests import Train, from_json

Metrics = Mapping[str, Mapping[str, Points]]
"""A training's label → its metrics."""
Values = dict[str, Any]
LONGEST = 60 * 33
"""Maximum number of characters of the ids in a URL: more than a page of a list has."""
NAMED = 3
MOST_MEASURED = 6
"""Maximum number of evaluation settings shown; the leaderboard has all."""
DASH = "–"


def ids_of(text: str) -> list[str]:
    return list(dict.fromkeys(row_id.strip()[:64] for row_id in text[:LONGEST].split(",") if row_id.strip()))


def comparison_url(ids: Sequence[str]) -> str:
    return "/runs/compare?" + urlencode({"ids": ",".join(ids)}, safe=",")


def labels(trainings: Sequence[Training]) -> list[str]:
    """Labels of the trainings in charts and tables: the name, with the job's id if several share it."""
    names = [training.name for training in trainings]
    return [each.name if names.count(each.name) == 1 else f"{each.name} · {each.job.id[:8]}" for each in trainings]


def missing_jobs_notice(result: SelectedTrainings) -> str:
    """A notice about jobs of the URL that are not shown, and why; otherwise ""."""
    sentences = []
    if result.others:
        sentences.append(t("Not training runs: {names}.", names=_quoted(result.others)))
    if result.missing:
        sentences.append(t("Jobs that do not exist: {n}.", n=result.missing))
    if result.surplus:
        sentences.append(t("At most {n} training runs can be compared.", n=MAX_TRAININGS))
        sentences.append(t("Left out: {names}.", names=_quoted(result.surplus)))
    if len(result.trainings) == 1:
        sentences.append(t("Only one training run is selected. Select two or more on Jobs."))
    return notice(" ".join(sentences), "warn", "/runs", t("Select on Jobs")) if sentences else ""


def charts(metrics: Metrics) -> str:
    drawn: dict[bool, str] = {True: "", False: ""}
    for metric in ordered({name for values in metrics.values() for name in values}):
        series = {label: values[metric] for label, values in metrics.items() if metric in values}
        look = {"order": list(metrics), "near": True, "legend": False}
        drawn[is_first(metric)] += metric_chart(chart_of(metric)[0], title(metric), series, **look)
    names = legend(list(metrics))
    first, more = (names + tag("div", html, class_="sp-charts") if html else "" for html in drawn.values())
    return first + fold(t("All other curves"), more)


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
    more = t(" and {n} more", n=len(jobs) - NAMED) if len(jobs) > NAMED else ""
    return ", ".join(f"“{job.name}”" for job in jobs[:NAMED]) + more


def tokens_of(session: Session, trainings: Sequence[Training]) -> dict[str, float]:
    """Job id → tokens seen in training: from the checkpoint's figures, otherwise from the last logged point."""
    seen = rows_of_trainings.best_values(session, [each.job.id for each in trainings], AXES["tokens"])
    for training in trainings:
        tokens = finite_number((training.checkpoint.figures or {}).get("tokens")) if training.checkpoint else None
        if tokens:  # older versions did not count the steps after the last log line
            seen[training.job.id] = max(tokens, seen.get(training.job.id, 0))
    return seen


def held_out_of(session: Session, trainings: Sequence[Training]) -> dict[str, float]:
    """Job id → the best expected τ on held-out conversations: of the curve, otherwise of the checkpoint's figures."""
    best = rows_of_trainings.best_values(session, [each.job.id for each in trainings], "eval/tau")
    for training in trainings:
        figures = (training.checkpoint.figures or {}) if training.checkpoint else {}
        tau = finite_number(figures.get("mean_accepted_length"))
        if tau is not None:
            best.setdefault(training.job.id, tau)
    return best


def figures_table(session: Session, trainings: Sequence[Training], metrics: Metrics) -> str:
    """Figures of each training side by side; rows that no training has are left out."""
    names, ids = labels(trainings), [training.job.id for training in trainings]
    tokens, held_out = tokens_of(session, trainings), held_out_of(session, trainings)
    last = [metrics.get(name, {}).get("train/loss") for name in names]
    drafts = [training.checkpoint for training in trainings]
    rows = [
        (t("State"), [_state(training) for training in trainings]),
        (t("Dataset"), [_data(training) for training in trainings]),
        (t("Steps"), [f"{training.job.done:,}" if training.job.done else DASH for training in trainings]),
        (t("Tokens seen"), [f"{tokens[row_id]:,.0f}" if tokens.get(row_id) else DASH for row_id in ids]),
        (t("Time taken"), [_time(training) for training in trainings]),
        (t("Last training loss"), [figure(points[-1][1], 3) if points else DASH for points in last]),
        (t("Held-out τ, greedy chain"), [figure(held_out.get(row_id)) for row_id in ids]),
        (t("Size"), [safe(size(draft.size_bytes)) if draft and draft.size_bytes else DASH for draft in drafts]),
    ]
    rows = [(labelled(label), cells) for label, cells in rows]
    for way, evaluations in evaluations_by_setting(trainings)[:MOST_MEASURED]:
        for label, key, unit in (("τ", "tau", ""), (t("Speedup"), "speedup", " ×")):
            cells = [figure_cell(evaluations.get(row_id), key, unit, linked=True) for row_id in ids]
            rows.append((tag("span", safe(label) + row_note(way)), cells))
    shown = [[label, *cells] for label, cells in rows if set(cells) != {DASH}]
    heads = {name: _head(row_id, name, ids) for name, row_id in zip(names, ids, strict=True)}
    return table(["", *names], shown, t("Figures of each training run"), wide_first=True, named=names, heads=heads)


def _head(row_id: str, name: str, ids: Sequence[str]) -> str:
    link = tag("a", safe(name), href=f"/runs?id={row_id}", class_="sp-row-name")
    if len(ids) < 3:
        return link
    to = comparison_url([other for other in ids if other != row_id])
    return link + tag(
        "a",
        "×",
        href=to,
        class_="sp-leave-out",
        aria_label=t("Remove {name}", name=name),
        title=t("Remove from the comparison"),
    )


def _state(training: Training) -> str:
    job = training.job
    how = job_view.progress_text(job) if job.state in job_view.ACTIVE else ""
    return job_view.state_badge(job) + (row_note(how) if how else "")


def _data(training: Training) -> str:
    links = [tag("a", safe(data.name), href=f"/data?id={data.id}") for data in training.datasets]
    return ", ".join(links) or safe(t("deleted"))


def _time(training: Training) -> str:
    took = job_view.seconds(training.job)
    return safe(duration(took)) if took is not None else DASH


def evaluations_by_setting(trainings: Sequence[Training]) -> list[tuple[str, dict[str, Evaluation]]]:
    """(evaluation settings, job id → newest evaluation with them), sorted by number of trainings, then newest first.
    Comparable evaluations share questions, sampling, tree, precision, server and machine."""
    ways: dict[str, dict[str, Evaluation]] = {}
    for training in trainings:
        for row in training.evaluations:
            way = " · ".join(filter(None, (settings_text(row), tree_text(row))))
            ways.setdefault(way, {}).setdefault(training.job.id, row)
    newest = {way: max(row.created_at for row in rows.values()) for way, rows in ways.items()}
    return sorted(ways.items(), key=lambda item: (-len(item[1]), -newest[item[0]].timestamp()))


def settings_table(trainings: Sequence[Training]) -> str:
    """Table of the settings that differ; equal settings below in a closed section."""
    if len(trainings) < 2:
        return ""
    names = labels(trainings)
    differ, equal = split_settings([settings_of(training) for training in trainings])
    rows = [[safe(key), *map(safe, row)] for key, row in differ.items()]
    html = table([t("Setting"), *names], rows, t("Settings that differ"), wide_first=True, named=names) if rows else ""
    html = html or tag("p", t("All settings are equal."), class_="sp-lead")
    if not equal:
        return html
    title = plural(
        "One setting is equal in all training runs", "{n} settings are equal in all training runs", len(equal)
    )
    return html + fold(title, facts((key, value or t("none")) for key, value in equal.items()))


def split_settings(values: Sequence[Values]) -> tuple[dict[str, list[str]], Values]:
    """(differing settings → value of each training, equal settings → value). "–": the training lacks the setting."""
    keys = list(dict.fromkeys(key for settings in values for key in settings))
    rows = {key: [value_text(settings[key]) if key in settings else DASH for settings in values] for key in keys}
    differ = {key: row for key, row in rows.items() if len(set(row)) > 1}
    return differ, {key: row[0] for key, row in rows.items() if key not in differ}


def value_text(value: Any) -> str:
    """The value of a setting as text."""
    if isinstance(value, bool):
        return t("yes") if value else t("no")
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or t("none")
    return f"{value:g}" if isinstance(value, float) else str(value) if value not in ("", None) else t("none")


def settings_of(training: Training) -> Values:
    """All inputs of a training: base model, data, method, recipe, then every setting including defaults."""
    request, base = training.job.request or {}, training.base
    try:
        train = from_json("train", request)
        assert isinstance(train, Train)
        settings = train.config.to_json()
    except (SpeculoosError, TypeError):  # from a version with other settings
        settings = dict(request.get("settings") or {})
    settings.pop("method", None)
    for key, value in settings.items():
        if value is None and key in SETTINGS and SETTINGS[key].is_open:
            settings[key] = t("depends on the data")
    return {
        "base": base.name if base else request.get("base_id", ""),
        "dataset": training.data if training.datasets else ", ".join(rows_of_trainings.dataset_ids(request)),
        "method": t(METHODS[request["method"]].title)
        if request.get("method") in METHODS
        else request.get("method", ""),
        "recipe": request.get("recipe") or t("none"),
        **settings,
    }
