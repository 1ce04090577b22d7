"""τ over data of an experiment's trainings, with what more data would buy. Pure over rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.views.checkpoint_rows import method_words
from app.views.forecast import FARTHEST, LEAST, Forecast, Point, forecast
from app.views.leaderboard import ends
from app.views.trainings_tables import measured_ways, settings_of, sorted_out
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import notice
from app.widgets.picker import table
from app.widgets.text import safe, tag
from tracking.tables import Evaluation
from tracking.trainings import Training

DATA = ("data set", "recipe", "epochs", "max_steps", "max_minutes", "seed")
"""Settings that may differ between the points of a curve: how much data there is, and chance."""
STEPS = 24
"""Points of the drawn curve."""
TIMES = (2.0, FARTHEST)
HELD_OUT = "as training expects it of its own held-out conversations"


@dataclass(frozen=True)
class Curve:
    """Points that belong together: trainings of one method for one base, measured in one way."""

    name: str
    how: str
    points: list[Point]
    others: list[str]  # settings that differ too


def learning_curves(trainings: Sequence[Training], tokens: Mapping[str, float], held_out: Mapping[str, float]) -> str:
    """A part for each base and method; `tokens` and `held_out` say tokens seen and the best expected τ by job."""
    groups: dict[tuple[str, str], list[Training]] = {}
    for training in trainings:
        request = training.job.request or {}
        groups.setdefault((str(request.get("base_id")), str(request.get("method"))), []).append(training)
    parts = [part(curve_of(own, tokens, held_out)) for own in groups.values()]
    return "".join(parts) or tag("p", "No training is in this experiment yet.", class_="sp-lead")


def curve_of(trainings: Sequence[Training], tokens: Mapping[str, float], held_out: Mapping[str, float]) -> Curve:
    """Their points: measured in the way that most share where enough of them do, else as training expected them."""
    first = trainings[0]
    method = method_words(str((first.job.request or {}).get("method") or ""))
    name = f"{method} for {first.base.name}" if first.base else method or "Trainings"
    seen = [each for each in trainings if tokens.get(each.job.id)]
    how, points = (
        HELD_OUT,
        {e.job.id: Point(tokens[e.job.id], held_out[e.job.id]) for e in seen if e.job.id in held_out},
    )
    for way, rows in measured_ways(seen)[:1]:
        found = {job_id: row for job_id, row in rows.items() if row.tau is not None}
        if len(found) >= LEAST or len(found) >= len(points):
            how = way
            points = {job_id: Point(tokens[job_id], row.tau, _spread(row)) for job_id, row in found.items()}
    used = [each for each in seen if each.job.id in points]
    differ, _ = sorted_out([settings_of(each) for each in used])
    ordered = sorted(points.values(), key=lambda point: point.tokens)
    return Curve(name, how, ordered, [key for key in differ if key not in DATA])


def part(curve: Curve) -> str:
    """One curve with its forecast, or what is missing for one."""
    found = forecast(curve.points)
    head = tag("h3", safe(curve.name)) + tag("p", safe(f"τ over data: {curve.how}."), class_="sp-lead")
    if found is None:
        told = missing(curve)
    else:
        told = verdict(curve, found) + _table(curve, found) + tag("p", safe(basis(found)), class_="sp-hint")
    beside = tag("div", head + told, class_="sp-stack")
    return tag("section", _chart(curve, found) + beside, class_="sp-curve")


def missing(curve: Curve) -> str:
    """Why nothing is forecast."""
    amounts = len({point.tokens for point in curve.points})
    said = {0: "None is", 1: "One is"}.get(amounts, f"{amounts} are")
    words = f"A forecast needs trainings on at least {LEAST} different amounts of data, each measured. {said} here."
    return notice(words, "info")


def verdict(curve: Curve, found: Forecast) -> str:
    """One sentence: what twice the data buys, and whether that is sure; a second where more than data differs."""
    best, (tau, low, high) = max(point.tau for point in curve.points), found.at(2 * found.most)
    likely = f"Twice the data: τ {tau:.2f}, between {low:.2f} and {high:.2f} at 95 %"
    if low > best:
        words, tone = f"{likely}, above the best so far ({best:.2f}).", "good"
    elif tau > best:
        words, tone = (
            f"{likely}; the best so far ({best:.2f}) lies in between, so more data may also buy nothing.",
            "info",
        )
    else:
        words, tone = f"{likely}; more data is not likely to beat the best so far ({best:.2f}).", "warn"
    mixed = (
        f"These trainings differ in more than their data ({', '.join(curve.others[:4])}); the curve is of all of it."
    )
    return notice(words, tone) + (notice(mixed, "warn") if curve.others else "")


def basis(found: Forecast) -> str:
    """What the forecast rests on."""
    if found.saturating:
        kind = f"τ = a − b·n^(−c), which ends at about {found.limit:.2f} if it goes on so"
    else:
        few = found.count - found.freedom == 2
        why = "fewer than five amounts of data tell no end" if few else "τ does not rise with the data here"
        kind = f"τ = a + b·ln n, a curve without an end, as {why}"
    rest = f"{found.count} trainings, {found.freedom} more than the curve has unknowns"
    if found.freedom == 1:
        rest = f"{found.count} trainings, one more than the curve has unknowns, hence the width"
    far = f"n counts every pass over the data; beyond {FARTHEST:g} times nothing is said"
    return f"Fitted: {kind}. It rests on {rest}. {far}."


def _table(curve: Curve, found: Forecast) -> str:
    rows = []
    for times in TIMES:
        tau, low, high = found.at(times * found.most)
        between = safe(f"{low:.2f} – {high:.2f}")
        rows.append([safe(f"{times:g} × ({times * found.most:,.0f} tokens)"), safe(f"{tau:.2f}"), between])
    columns = ["Data", "τ, forecast", "95 % interval"]
    return table(columns, rows, f"Forecast for {curve.name}", wide_first=True, named=columns[1:])


def _chart(curve: Curve, found: Forecast | None) -> str:
    series = {"measured": [(point.tokens, point.tau) for point in curve.points]}
    if found and curve.points[0].tokens > 0:
        first, last = curve.points[0].tokens, FARTHEST * found.most
        places = [round(first * (last / first) ** (step / STEPS)) for step in range(STEPS + 1)]
        for at, name in enumerate(("forecast", "95 %, low", "95 %, high")):
            series[name] = [(n, found.at(n)[at]) for n in places]
    look = ChartStyle(dots=("measured",), order=("measured", "forecast", "95 %, low", "95 %, high"), near=True, up="τ")
    return line_chart(f"τ by tokens seen, {curve.name}", series, across="tokens seen", look=look)


def _spread(row: Evaluation) -> float:
    low, high = ends(row, "tau")
    return (high - low) / 2 if low is not None and high is not None else 0.0
