"""Acceptance rules worked by hand on small trees."""

import pytest
import torch

from decoding.accept import (
    GreedyRule,
    Verification,
    accept_greedy,
    accept_typical,
    make_rule,
    typical_threshold,
)
from decoding.config import GenerateConfig
from decoding.generate import seeded_generator
from decoding.tree import DraftTree, TreeShape
from models.runtime.interface import ForwardOutput
from tests.decoding.conftest import walk_trees

SHAPE = TreeShape((-1, 0, 0, 1, 2, 2))
TOKENS = (7, 1, 2, 3, 4, 5)


def test_greedy_follows_the_bases_best_tokens_down_the_tree():
    assert accept_greedy(SHAPE, TOKENS, [2, 9, 5, 9, 9, 6]) == Verification((2, 5), 6)
    assert accept_greedy(SHAPE, TOKENS, [1, 8, 9, 9, 9, 9]) == Verification((1,), 8)
    assert accept_greedy(SHAPE, TOKENS, [9, 1, 1, 1, 1, 1]) == Verification((), 9)


def test_greedy_takes_a_row_of_logits_or_the_best_token_per_node():
    best, hidden = torch.tensor([2, 9, 5, 9, 9, 6]), torch.zeros(6, 1)
    logits = torch.nn.functional.one_hot(best, 10).float()
    for target_output in (ForwardOutput(logits, hidden), ForwardOutput(None, hidden, best_ids=best)):
        assert GreedyRule()(DraftTree(TOKENS, SHAPE), target_output) == Verification((2, 5), 6)
        assert GreedyRule().first(target_output) == 6


@pytest.mark.parametrize("sampled", [False, True])
def test_acceptance_without_synchronization_gives_the_same_results(sampled, monkeypatch):
    """Runs the code for GPUs, which does not wait for the device, on the CPU."""
    rule = make_rule(GenerateConfig(temperature=1.0, top_p=0.9), seeded_generator(0))
    verifications = []
    for cpu in (True, False):
        monkeypatch.setattr("decoding.accept._is_cpu", lambda _device, cpu=cpu: cpu)
        rule.generator.manual_seed(0)
        draws = torch.Generator().manual_seed(1)
        for _ in range(60):
            logits = 2 * torch.randn(len(SHAPE), 8, generator=draws)
            q = {n: torch.rand(8, generator=draws, dtype=torch.float64) for n in range(3)} if sampled else {}
            tree = DraftTree(TOKENS, SHAPE, proposals={n: row / row.sum() for n, row in q.items()})
            verifications.append(rule(tree, ForwardOutput(logits, torch.zeros(6, 1))))
    assert verifications[:60] == verifications[60:] and len(set(verifications)) > 10


def lossless(p, q, uniforms, shape=SHAPE, tokens=TOKENS):
    probs = torch.tensor(p, dtype=torch.float64)
    proposals = {n: torch.tensor([row], dtype=torch.float64) for n, row in (q or {}).items()}
    node, token = walk_trees(
        shape, torch.tensor([tokens]), lambda n: probs[n], proposals, torch.tensor([uniforms], dtype=torch.float64)
    )
    return int(node), int(token)


def test_a_deterministic_child_is_accepted_with_its_own_probability_then_zeroed():
    shape, tokens = TreeShape((-1, 0, 0)), (0, 1, 2)
    p = [[0.2, 0.5, 0.3], [0, 0, 1], [1, 0, 0]]
    assert lossless(p, None, [0.0, 0.49, 0.9], shape, tokens) == (1, 2)
    assert lossless(p, None, [0.0, 0.51, 0.59], shape, tokens) == (2, 0), "0.3 of the 0.5 that is left is 0.6"
    assert lossless(p, None, [0.0, 0.51, 0.61], shape, tokens) == (0, 0), "only token 0 has mass left"


def test_a_sampled_child_is_accepted_with_p_over_q_and_leaves_the_residual():
    shape, tokens = TreeShape((-1, 0)), (0, 1)
    p, q = [[0.4, 0.2, 0.4], [1, 0, 0]], {0: [0.1, 0.8, 0.1]}
    assert lossless(p, q, [0.0, 0.24], shape, tokens) == (1, 0)
    assert lossless(p, q, [0.49, 0.26], shape, tokens) == (0, 0), "the residual is half token 0, half token 2"
    assert lossless(p, q, [0.51, 0.26], shape, tokens) == (0, 2)


def test_after_a_rejected_sampled_sibling_q_is_renormalized_without_it():
    shape, tokens = TreeShape((-1, 0, 0)), (0, 1, 2)
    p = [[0.5, 0.1, 0.4], [1, 0, 0], [1, 0, 0]]
    q = {0: [0.25, 0.5, 0.25]}
    # after rejecting 1: p = norm([0.25, 0, 0.15]) = [0.625, 0, 0.375], q = [0.5, 0, 0.5]; token 2 passes with 0.75
    assert lossless(p, q, [0.0, 0.21, 0.74], shape, tokens) == (2, 0)
    assert lossless(p, q, [0.0, 0.21, 0.76], shape, tokens) == (0, 0)


def test_typical_threshold_is_the_smaller_of_epsilon_and_alpha_exp_minus_entropy():
    even, sure = torch.full((4,), 0.25), torch.tensor([1.0, 0, 0, 0])
    assert abs(float(typical_threshold(even, 0.09, 0.3)) - 0.3 / 4) < 1e-4
    assert abs(float(typical_threshold(sure, 0.09, 0.3)) - 0.09) < 1e-4


def test_typical_takes_the_longest_path_and_among_equals_the_likelier():
    probs = torch.full((6, 10), 0.001)
    probs[0, 1] = probs[0, 2] = 0.4
    probs[1, 3], probs[2, 4], probs[2, 5] = 0.5, 0.3, 0.6
    assert accept_typical(SHAPE, TOKENS, probs, 0.09, 0.3) == (2, 5)
    probs[2, 4] = probs[2, 5] = 0.001
    assert accept_typical(SHAPE, TOKENS, probs, 0.09, 0.3) == (1, 3)
    probs[1, 3] = probs[0, 1] = probs[0, 2] = 0.001
    assert accept_typical(SHAPE, TOKENS, probs, 0.09, 0.3) == ()


def test_typical_acceptance_changes_the_distribution():
    """It is lossy: improbable tokens are never emitted."""
    rule = make_rule(GenerateConfig(temperature=1.0, acceptance="typical"), seeded_generator(0))
    target_output = ForwardOutput(torch.tensor([[3.0, 2.5, -2.0, -3.0]]), torch.zeros(1, 1))
    drawn = {rule(DraftTree((0,)), target_output).bonus_token for _ in range(500)}
    assert drawn == {0, 1}


def test_temperature_zero_is_greedy_whatever_the_rule():
    assert isinstance(make_rule(GenerateConfig(acceptance="typical"), seeded_generator(0)), GreedyRule)
