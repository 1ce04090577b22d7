"""What a tree is expected to give, against numbers worked by hand."""

import pytest

from models.methods.expectation import TreeMeasurements, estimate_tree, non_decreasing, suggest_tree

SHARES = [[0.6, 0.2, None], [0.5, 0.1]]
COSTS = {"forward_ms": {"1": 10.0, "2": 10.0, "4": 12.0, "8": 20.0}, "draft_ms": [1.0, 2.0], "other_ms": 1.0}
TIMED = TreeMeasurements.of({"by_rank": SHARES, **COSTS})
UNTIMED = TreeMeasurements.of({"acceptance_by_rank": SHARES})


def test_tau_is_one_and_the_products_along_every_path():
    found = estimate_tree([[0, 0], [1]], TIMED)
    assert found.chances == {(0,): 0.6, (1,): 0.2, (0, 0): pytest.approx(0.3)}
    assert found.tau == pytest.approx(1 + 0.6 + 0.2 + 0.3) and found.unknown == 0
    assert found.step_ms == pytest.approx(12 + 2 + 1)
    assert found.speedup == pytest.approx(2.1 * 11 / 15)


def test_leaves_alone_and_every_node_name_the_same_tree():
    assert estimate_tree([[0, 0], [1]], TIMED) == estimate_tree([[1], [0], [0, 0]], TIMED)


def test_what_was_not_measured_counts_as_never_accepted_and_is_said():
    found = estimate_tree([[0, 0, 0], [2], [3]], TIMED)
    assert found.unknown == 3 and found.tau == pytest.approx(1 + 0.6 + 0.3)
    assert found.step_ms == pytest.approx(16 + 3 + 1), "drafting one deeper costs what the last step did"


def test_without_costs_there_is_no_speed():
    found = estimate_tree([[0], [1]], UNTIMED)
    assert (found.tau, found.step_ms, found.speedup) == (pytest.approx(1.8), None, None)
    assert estimate_tree([[rank] for rank in range(9)], TIMED).step_ms is None, "more nodes than were timed"


def test_the_suggested_tree_is_the_fastest_of_all_small_ones():
    every = [[]]
    for node in [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]:
        every += [[*tree, node] for tree in every if len(node) == 1 or node[:1] in tree]
    best = max(estimate_tree(tree, TIMED).speedup for tree in every if tree)
    assert estimate_tree(suggest_tree(TIMED), TIMED).speedup == pytest.approx(best)
    assert suggest_tree(UNTIMED) == [[0], [1], [0, 0], [0, 1], [1, 0], [1, 1]]


def test_nothing_measured_is_nothing_known():
    assert TreeMeasurements.of({}) is None and TreeMeasurements.of({"by_rank": []}) is None


def test_more_work_never_costs_less():
    assert non_decreasing({1: 20.0, 2: 11.0, 4: 12.0, 8: 30.0}) == {1: 11.0, 2: 11.0, 4: 12.0, 8: 30.0}
    assert non_decreasing({1: 1.0, 2: 2.0}) == {1: 1.0, 2: 2.0} and non_decreasing({}) == {}
