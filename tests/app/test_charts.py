"""Charts: round ticks, thinned lines, hostile names shown literally."""

import math

import pytest

from app.widgets.charts import line_chart, ticks


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0, 1, [0, 0.5, 1]), (0, 100, [0, 50, 100]), (1.2, 4.1, [2, 3, 4]), (0, 7, [0, 2, 4, 6])],
)
def test_ticks_are_round_numbers_inside_the_range(low, high, expected):
    assert ticks(low, high) == pytest.approx(expected)


def test_a_chart_names_every_series_with_its_last_value():
    heads = {"head 1": [(0, 0.1), (10, 0.5)], "head 2": [(0, 0.05), (10, 0.25)]}
    made = line_chart("Top-1 accuracy", heads, percent=True)
    assert "head 1" in made and "50%" in made and "head 2" in made and "25%" in made
    assert "Top-1 accuracy: head 1 50%, head 2 25% at step 10" in made


def test_numbers_that_are_not_finite_leave_no_broken_line():
    made = line_chart("Loss", {"train": [(0, 2.0), (1, math.nan), (2, 1.0)]})
    assert ",nan" not in made
    assert line_chart("Loss", {"train": [(0, math.nan)]}) == ""


def test_a_long_run_is_thinned_and_keeps_its_last_point():
    made = line_chart("Loss", {"train": [(i, i / 1000) for i in range(5000)]})
    assert made.count(",") < 400
    assert "<b>5</b>" in made


def test_a_hostile_name_is_shown_literally():
    made = line_chart("<img src=x onerror=alert(1)>", {"${alert(1)}": [(0, 1.0), (1, 2.0)]})
    assert "<img" not in made
    assert "${" not in made
