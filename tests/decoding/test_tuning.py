"""The tuned tree is the best one: small cases are compared with all trees."""

import itertools
import random

import pytest

from decoding.step import DraftRecord, EmittedToken, Step
from decoding.step_costs import interpolate
from decoding.target import fast_target
from decoding.tree import shape_from_choices
from decoding.tuning import (
    best_choices,
    expected_tau,
    lengths_by_size,
    measure_forward,
    plan_dynamic,
    plan_tree,
    values_from_steps,
    wide_choices,
)
from models.base import load_base

COST = {1: 20.0, 2: 21.0, 4: 22.0, 8: 26.0}


def random_values(seed: int) -> dict[tuple[int, ...], float]:
    """Values of all 14 nodes of a binary tree of depth 3; siblings share their parent's value."""
    rng = random.Random(seed)
    values: dict[tuple[int, ...], float] = {(): 1.0}
    for depth in range(3):
        for parent in itertools.product(range(2), repeat=depth):
            first = rng.random()
            values[(*parent, 0)] = values[parent] * first
            values[(*parent, 1)] = values[parent] * (1 - first) * rng.random()
    del values[()]
    return values


def every_tree(values):
    """All sets of nodes that hold each node's parent."""
    for size in range(1, 8):
        for choices in itertools.combinations(values, size):
            if all(len(c) == 1 or c[:-1] in choices for c in choices):
                yield choices


@pytest.mark.parametrize("seed", range(4))
def test_the_planned_tree_is_as_fast_as_the_best_found_by_trying_all(seed):
    values = random_values(seed)

    def draft_ms(depth: int) -> float:
        return 1.5 * depth

    def speed(choices) -> float:
        ms = interpolate(COST, len(choices) + 1) + draft_ms(max(map(len, choices)))
        return expected_tau(values, choices) / ms

    plan = plan_tree(values, COST, draft_ms, max_nodes=8)
    best = max(speed(choices) for choices in every_tree(values))
    assert speed(plan.choices) == pytest.approx(best)
    assert plan.expected_speedup == pytest.approx(best * COST[1])


@pytest.mark.parametrize("seed", range(4))
def test_the_best_nodes_always_form_a_tree(seed):
    values = random_values(seed)
    for nodes in range(2, 12):
        choices = best_choices(values, nodes)
        assert len(choices) == nodes - 1
        assert len(shape_from_choices(choices)) == nodes, "closed under ancestors: no node had to be added"


def test_plain_decoding_is_recommended_when_no_tree_pays():
    plan = plan_tree({(0,): 0.05}, COST, lambda depth: 5.0)
    assert plan.choices == () and "Plain decoding is faster" in plan.verdict
    assert plan_tree({}, COST, lambda depth: 0.0).choices == ()


def step(ranks, parents, accepted, logprobs=None) -> Step:
    draft_record = DraftRecord(
        tokens=tuple(range(len(ranks))), parents=parents, depths=(1,) * len(ranks), ranks=ranks,
        logprobs=logprobs or (0.0,) * len(ranks),
    )  # fmt: skip
    tokens = tuple(EmittedToken(0, "draft") for _ in accepted) + (EmittedToken(0, "target"),)
    return Step(1, "verify", tokens, draft_record, accepted)


def test_values_are_shares_of_verifications_whose_path_runs_through_a_node():
    wide = ((0, 1, 0), (-1, -1, 0))
    steps = [step(*wide, (0, 2)), step(*wide, (1,)), step(*wide, ()), step(*wide, (0,))]
    assert values_from_steps(steps) == {(0,): 0.5, (0, 0): 0.25, (1,): 0.25}


def test_smaller_dynamic_trees_keep_the_best_scores():
    # cumulative scores: node 0 -0.1, node 1 -2.0, node 2 (below 0) -0.6
    steps = [
        step((0, 1, 0), (-1, -1, 0), (0, 2), (-0.1, -2.0, -0.5)),
        step((0, 1, 0), (-1, -1, 0), (1,), (-0.1, -2.0, -0.5)),
    ]
    assert lengths_by_size(steps, (1, 2, 3, 4)) == {1: 1.0, 2: 1.5, 3: 2.0, 4: 2.5}


def test_a_dynamic_plan_weighs_depth_against_the_cost_of_drafting():
    draft_record = DraftRecord((0, 1, 2), (-1, 0, 1), (1, 2, 3), (0, 0, 0), (-0.1, -0.1, -0.1))
    accepted = [(0, 1), (0,), (0, 1), ()]
    steps = [Step(1, "verify", (EmittedToken(0, "target"),), draft_record, path) for path in accepted]
    assert lengths_by_size(steps, (2, 3, 4)) == {2: 1.75, 3: 2.25, 4: 2.25}
    assert lengths_by_size(steps, (4,), max_depth=1) == {4: 1.75}
    cheap = plan_dynamic(steps, COST, lambda depth: 0.1 * depth, sizes=(2, 3, 4))
    assert (cheap.nodes, cheap.depth) == (3, 2)
    dear = plan_dynamic(steps, COST, lambda depth: 8.0 * depth, sizes=(2, 3, 4))
    assert (dear.nodes, dear.depth) == (2, 1)
    assert plan_dynamic(steps, COST, lambda depth: 80.0, sizes=(2, 3, 4)).nodes == 0


def test_the_calibration_tree_is_a_tree_of_the_size_asked_for():
    for depth in (1, 2, 5):
        choices = wide_choices(depth)
        assert len(choices) <= 63 and max(map(len, choices)) == depth
        assert len(shape_from_choices(choices)) == len(choices) + 1


def test_measuring_leaves_the_cache_as_it_was(tiny_base):
    target = fast_target(load_base(tiny_base), 128)
    target.prefill(list(range(5, 30)))
    costs = measure_forward(target, (1, 4), rounds=2)
    assert set(costs) == {1, 4} and all(ms > 0 for ms in costs.values())
    assert target.cache.length == len(target.ids) == 25 and target.cache.staged == [0]
