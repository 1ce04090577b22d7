"""Charts: round ticks, thinned lines, hostile names shown literally."""

import html
import json
import math
import re

import pytest

from app.widgets.charts import ChartStyle, line_chart, tick_labels, ticks


def chart_data(markup: str) -> dict:
    """The data that a chart passes to the script."""
    return json.loads(html.unescape(re.search(r'data-chart="([^"]+)"', markup)[1]))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.5, 1]), (0, 100, [0, 50, 100]), (1.2, 4.1, [2, 3, 4]), (0, 7, [0, 2, 4, 6])],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_a_chart_names_every_series_with_its_last_value():
    heads = {"head 1": [(0, 0.1), (10, 0.5)], "head 2": [(0, 0.05), (10, 0.25)]}
    markup = line_chart("Top-1 accuracy", heads, percent=True)
    assert "head 1" in markup and "50%" in markup and "head 2" in markup and "25%" in markup
    assert "Top-1 accuracy: head 1 50%, head 2 25% at step 10" in markup


def test_a_chart_of_choices_names_the_best_point_and_where_it_lies():
    line = {"tree": [(2, 1.3), (4, 1.9), (64, 0.5)]}
    html = line_chart("Speed", line, unit="× plain", across="nodes", look=ChartStyle(best="max"))
    assert "<b>1.9 × plain at 4 nodes</b>" in html and "tree 1.9 × plain at nodes 4" in html and "<b>0.5" not in html
    assert html.count("<circle") == 1


def test_the_best_loss_is_the_lowest():
    html = line_chart("Loss", {"train": [(0, 3.0), (1200, 1.0), (2400, 2.0)]}, look=ChartStyle(best="min"))
    assert "<b>1 at step 1,200</b>" in html and ">loss</text>" not in html


@pytest.mark.parametrize("value", [0.0, 0.0003, 2.5, 90_000.0])
def test_a_single_point_is_in_the_middle(value):
    data = chart_data(line_chart("Speed", {"a": [(500, value)]}))
    for (low, high), middle in ((data["x"], 500), (data["y"], value)):
        assert low < middle < high and middle - low == pytest.approx(high - middle)


def test_numbers_that_are_not_finite_leave_no_broken_line():
    markup = line_chart("Loss", {"train": [(0, 2.0), (1, math.nan), (2, 1.0)]})
    assert ",nan" not in markup
    assert line_chart("Loss", {"train": [(0, math.nan)]}) == ""


def test_a_long_run_is_thinned_and_keeps_its_last_point():
    markup = line_chart("Loss", {"train": [(i, i / 1000) for i in range(5000)]})
    assert len(re.search(r'points="([^"]+)"', markup)[1].split()) < 200
    assert len(chart_data(markup)["points"][0]) < 200
    assert "<b>5</b>" in markup


def test_a_hostile_name_is_shown_literally():
    markup = line_chart("<img src=x onerror=alert(1)>", {"${alert(1)}": [(0, 1.0), (1, 2.0)]})
    assert "<img" not in markup
    assert "${" not in markup


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([0, 1, 2], False, ["0", "1", "2"]),
        ([2.3451, 2.3452, 2.3453], False, ["2.3451", "2.3452", "2.3453"]),
        ([0.951, 0.952], True, ["95.1%", "95.2%"]),
        ([1000.2, 1000.4], False, ["1000.2", "1000.4"]),
    ],
)
def test_labels_of_an_axis_differ(values, percent, expected):
    assert tick_labels(values, percent) == expected


def test_axes_are_labelled():
    markup = line_chart("Speed", {"a": [(0, 1.0), (1, 2.0)]}, unit="tokens/s", across="rows")
    assert ">tokens/s</text>" in markup and ">rows</text>" in markup


def test_a_chart_holds_its_data():
    data = chart_data(line_chart("Loss", {"train ${x}": [(0, 2.0), (10, 1.23456789)]}, unit="nats"))
    assert data["names"] == ["train ${x}"] and data["points"] == [[[0, 2.0], [10, 1.23457]]]
    assert data["x"] == [0, 10] and data["unit"] == "nats" and data["title"] == "Loss"
