"""HTML of the loads of an evaluated server: throughput with and without the draft, latencies, and where drafting stops
paying."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.i18n import N_, t
from app.views.leaderboard import interval_note
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import notice, row_note
from app.widgets.formatting import figure, interval
from app.widgets.picker import table
from app.widgets.text import safe, tag
from speculoos.loads import stops_paying_at, undecided
from tracking.evaluations import finite_number

HOW = N_(
    "Each load sends the questions through that many concurrent requests, with and without the draft in alternating "
    "rounds. Times are medians over requests, with the 95th percentile; τ is what the server publishes at that load."
)


def loads_view(result: Mapping[str, Any]) -> str:
    """Verdict, chart and table; "" for evaluations without loads."""
    loads = [load for load in result.get("loads") or () if isinstance(load, Mapping)]
    if not loads:
        return ""
    charts = _chart(t("Throughput by load"), loads, "tokens_per_second", t("tokens/s"))
    charts += _chart(t("Time per token by load"), loads, "inter_token", "ms")
    hint = tag("p", safe(t(HOW)), class_="sp-hint")
    return verdict(loads) + tag("div", charts, class_="sp-charts") + loads_table(loads) + hint


def _chart(title: str, loads: Sequence[Mapping[str, Any]], key: str, unit: str) -> str:
    lines = {name: points for name, side in sides() if (points := _points(loads, side, key))}
    return line_chart(title, lines, unit=unit, across=t("concurrent requests"), look=ChartStyle(near=True))


def sides() -> tuple[tuple[str, str], ...]:
    """(name, key of a load) with and without the draft."""
    return (t("with the draft"), "drafted"), (t("without a draft"), "plain")


def verdict(loads: Sequence[Mapping[str, Any]]) -> str:
    if not any(load.get("speedup_interval") for load in loads):
        return ""
    if slower := stops_paying_at(loads):
        sentence = t(
            "Decoding with the draft is slower at {n} concurrent requests: the whole interval of the speedup is below "
            "1.",
            n=slower,
        )
        return notice(sentence, "warn")
    if unclear := undecided(loads):
        return notice(
            t(
                "No load tried is measurably slower with the draft; at {loads} concurrent requests the interval "
                "contains 1.",
                loads=", ".join(map(str, unclear)),
            )
        )
    return notice(t("Decoding with the draft is faster at every load tried."), "good")


def loads_table(loads: Sequence[Mapping[str, Any]]) -> str:
    columns = [
        t("Concurrent requests"),
        t("Tokens/s"),
        t("Time to first token"),
        t("Time per token"),
        "τ",
        t("Speedup"),
    ]
    rows = []
    for load in loads:
        for name, side in sides():
            if not (values := load.get(side)):
                if side == "drafted":
                    rows.append([_label(load, name, 0), safe(t("all requests failed")), "", "", "", ""])
                continue
            tau = figure(finite_number(values.get("mean_accepted_length")))
            speedup = figure(finite_number(load.get("speedup")), unit="×") if side == "drafted" else ""
            between = interval(load, "speedup", " ×") if side == "drafted" else ""
            rows.append(
                [
                    _label(load, name, values.get("failed") or 0),
                    safe(figure(finite_number(values.get("tokens_per_second")), 1)),
                    *(_times(values.get(key)) for key in ("ttft", "inter_token")),
                    safe(tau),
                    safe(speedup) + interval_note(between),
                ]
            )
    return table(columns, rows, t("By load"), wide_first=True, named=columns[1:])


def _label(load: Mapping[str, Any], name: str, failed: int) -> str:
    note = f"{name} · {t('{n} failed', n=failed)}" if failed else name
    return tag("div", safe(load["concurrency"])) + row_note(note)


def _times(pair: Any) -> str:
    """Median, with the 95th percentile below it."""
    if not isinstance(pair, Sequence) or len(pair) != 2:
        return "–"
    median, high = (figure(value, 0 if value and value >= 100 else 1) for value in map(finite_number, pair))
    return safe(f"{median} ms") + interval_note(f"p95 {high} ms")


def _points(loads: Sequence[Mapping[str, Any]], side: str, key: str) -> list[tuple[float, float]]:
    """(load, figure), the median of two."""
    values = [(load["concurrency"], (load.get(side) or {}).get(key)) for load in loads]
    numbers = [(float(load), finite_number(value[0] if isinstance(value, list) else value)) for load, value in values]
    return [(load, value) for load, value in numbers if value is not None]
