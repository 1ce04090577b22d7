"""Step costs that estimates use."""

from decoding.step_costs import non_decreasing


def test_more_work_never_costs_less():
    assert non_decreasing({1: 20.0, 2: 11.0, 4: 12.0, 8: 30.0}) == {1: 11.0, 2: 11.0, 4: 12.0, 8: 30.0}
    assert non_decreasing({1: 1.0, 2: 2.0}) == {1: 1.0, 2: 2.0} and non_decreasing({}) == {}
