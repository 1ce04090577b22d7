"""Learning curves of an experiment: τ over training data, with a forecast for more data. Pure functions of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.views.checkpoint_rows import method_words
from app.views.forecast import FARTHEST, LEAST, Forecast, Point, forecast
from app.views.leaderboard import interval_ends
from app.views.trainings_tables import evaluations_by_setting, settings_of, split_settings
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import notice
from app.widgets.picker import table
from app.widgets.text import safe, tag
from tracking.tables import Evaluation
from tracking.trainings import Training

DATA = ("data set", "recipe", "epochs", "max_steps", "max_minutes", "seed")
"""Settings that may differ between the points of a curve: the amount of data, and the seed."""
STEPS = 24
"""Number of intervals of the drawn curve."""
TIMES = (2.0, FARTHEST)
HELD_OUT = "estimated in training on held-out conversations"


@dataclass(frozen=True)
class Curve:
    """Trainings of one method for one base model, measured in the same way."""

    name: str
    how: str
    points: list[Point]
    others: list[str]  # other settings that differ


def learning_curves(trainings: Sequence[Training], tokens: Mapping[str, float], held_out: Mapping[str, float]) -> str:
    """A part per base model and method; `tokens`: job id → tokens seen, `held_out`: job id → best expected τ."""
    groups: dict[tuple[str, str], list[Training]] = {}
    for training in trainings:
        request = training.job.request or {}
        groups.setdefault((str(request.get("base_id")), str(request.get("method"))), []).append(training)
    parts = [part(curve_of(own, tokens, held_out)) for own in groups.values()]
    return "".join(parts) or tag("p", "This experiment has no trainings yet.", class_="sp-lead")


def curve_of(trainings: Sequence[Training], tokens: Mapping[str, float], held_out: Mapping[str, float]) -> Curve:
    """The curve of `trainings`: measured τ if enough of them share a setting, otherwise τ expected in training."""
    first = trainings[0]
    method = method_words(str((first.job.request or {}).get("method") or ""))
    name = f"{method} for {first.base.name}" if first.base else method or "Trainings"
    usable = [training for training in trainings if tokens.get(training.job.id)]
    how, points = (
        HELD_OUT,
        {e.job.id: Point(tokens[e.job.id], held_out[e.job.id]) for e in usable if e.job.id in held_out},
    )
    for setting, rows in evaluations_by_setting(usable)[:1]:
        measured = {job_id: row for job_id, row in rows.items() if row.tau is not None}
        if len(measured) >= LEAST or len(measured) >= len(points):
            how = setting
            points = {job_id: Point(tokens[job_id], row.tau, _spread(row)) for job_id, row in measured.items()}
    used = [training for training in usable if training.job.id in points]
    differ, _ = split_settings([settings_of(training) for training in used])
    ordered = sorted(points.values(), key=lambda point: point.tokens)
    return Curve(name, how, ordered, [key for key in differ if key not in DATA])


def part(curve: Curve) -> str:
    """One curve with its forecast, or what a forecast needs."""
    prediction = forecast(curve.points)
    head = tag("h3", safe(curve.name)) + tag("p", safe(f"τ over data: {curve.how}."), class_="sp-lead")
    if prediction is None:
        text = missing(curve)
    else:
        text = (
            verdict(curve, prediction) + _table(curve, prediction) + tag("p", safe(basis(prediction)), class_="sp-hint")
        )
    words = tag("div", head + text, class_="sp-stack")
    return tag("section", _chart(curve, prediction) + words, class_="sp-curve")


def missing(curve: Curve) -> str:
    """Why there is no forecast."""
    amounts = len({point.tokens for point in curve.points})
    words = f"A forecast needs measured trainings on at least {LEAST} different amounts of data; there are {amounts}."
    return notice(words, "info")


def verdict(curve: Curve, prediction: Forecast) -> str:
    """Notices: the forecast for twice the data, and a warning if other settings differ too."""
    best, (tau, low, high) = max(point.tau for point in curve.points), prediction.at(2 * prediction.most)
    likely = f"Twice the data: τ {tau:.2f} (95 % interval {low:.2f} to {high:.2f})"
    if low > best:
        words, tone = f"{likely}, above the best so far ({best:.2f}).", "good"
    elif tau > best:
        words, tone = (
            f"{likely}. The interval contains the best so far ({best:.2f}), so more data may not help.",
            "info",
        )
    else:
        words, tone = f"{likely}. More data is unlikely to beat the best so far ({best:.2f}).", "warn"
    mixed = f"These trainings differ in other settings too ({', '.join(curve.others[:4])}), which affects the curve."
    return notice(words, tone) + (notice(mixed, "warn") if curve.others else "")


def basis(prediction: Forecast) -> str:
    """The fitted formula and the number of trainings behind it."""
    if prediction.saturating:
        kind = f"τ = a − b·n^(−c), with the limit a ≈ {prediction.limit:.2f}"
    else:
        few = prediction.count - prediction.freedom == 2
        why = "fewer than five amounts of data show no limit" if few else "τ does not rise with the data"
        kind = f"τ = a + b·ln n, a curve without a limit, because {why}"
    rest = f"{prediction.count} trainings, {prediction.freedom} more than the curve has parameters"
    if prediction.freedom == 1:
        rest = f"{prediction.count} trainings, one more than the curve has parameters, so the interval is wide"
    far = f"n counts the tokens of every pass over the data; the forecast ends at {FARTHEST:g} times the data"
    return f"Fit: {kind}. Based on {rest}. {far}."


def _table(curve: Curve, prediction: Forecast) -> str:
    rows = []
    for times in TIMES:
        tau, low, high = prediction.at(times * prediction.most)
        between = safe(f"{low:.2f} – {high:.2f}")
        rows.append([safe(f"{times:g} × ({times * prediction.most:,.0f} tokens)"), safe(f"{tau:.2f}"), between])
    columns = ["Data", "τ (forecast)", "95 % interval"]
    return table(columns, rows, f"Forecast for {curve.name}", wide_first=True, named=columns[1:])


def _chart(curve: Curve, prediction: Forecast | None) -> str:
    series = {"measured": [(point.tokens, point.tau) for point in curve.points]}
    if prediction and curve.points[0].tokens > 0:
        first, last = curve.points[0].tokens, FARTHEST * prediction.most
        amounts = [round(first * (last / first) ** (step / STEPS)) for step in range(STEPS + 1)]
        for at, name in enumerate(("forecast", "95 %, low", "95 %, high")):
            series[name] = [(n, prediction.at(n)[at]) for n in amounts]
    look = ChartStyle(dots=("measured",), order=("measured", "forecast", "95 %, low", "95 %, high"), near=True, up="τ")
    return line_chart(f"τ by tokens seen, {curve.name}", series, across="tokens seen", look=look)


def _spread(row: Evaluation) -> float:
    low, high = interval_ends(row, "tau")
    return (high - low) / 2 if low is not None and high is not None else 0.0
