"""Sampling is lossless: whatever the draft proposes, tokens have the base's own distribution. A statistical test.

Each case draws N outputs and compares counts with the exact probabilities by Pearson's χ². All cases together raise a
false alarm with probability at most ALARM (Bonferroni). Seeds are fixed, so a pass stays a pass.
"""

from itertools import product

import pytest
import torch

from decoding.config import GenerateConfig
from decoding.drafters.base import Drafter
from decoding.generate import generate
from decoding.sampling import LogitsWarper, draw, draw_distinct
from decoding.target import Target
from decoding.tree import DraftTree, chain_shape, shape_from_choices
from models.runtime.interface import ForwardOutput
from tests.decoding.conftest import walk_trees

ALARM = 1e-3
N = 20_000
VOCAB = 6
SHAPES = {
    "chain": chain_shape(3),
    "tree": shape_from_choices([[0, 0], [0, 1], [1], [2]]),
    "wide": shape_from_choices([[0], [1], [2], [3]]),
}
WARPS = {
    "T=1": LogitsWarper(1.0),
    "T=0.5": LogitsWarper(0.5),
    "T=1.5 top-p 0.8": LogitsWarper(1.5, top_p=0.8),
    "T=0.8 top-k 3": LogitsWarper(0.8, top_k=3),
    "T=1.2 top-k 5 top-p 0.9": LogitsWarper(1.2, top_k=5, top_p=0.9),
}
NARROW = ("T=0.8 top-k 3", "T=1.2 top-k 5 top-p 0.9")
TOO_WIDE = {("wide", name, "sampled") for name in NARROW}
"""Four different children cannot be drawn from three tokens; that fewer are drawn is tested on its own."""
CASES = [case for case in product(SHAPES, WARPS, ["deterministic", "sampled"]) if case not in TOO_WIDE]
TESTS = 2 * len(CASES) + 4
"""χ² tests in this file that must pass."""


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tokens fill two blocks, as a real vocabulary fills many; one block of 256 would be nearly all zeros."""
    monkeypatch.setattr("decoding.sampling.BLOCK", 4)


def p_value(counts: torch.Tensor, probs: torch.Tensor) -> float:
    """p-value of Pearson's χ² test of `counts` against `probs` (both flat); cells expected below 5 are merged."""
    expected = probs.double() * counts.sum()
    small = expected < 5
    assert counts[expected == 0].sum() == 0, "a token came out that the distribution excludes"
    observed = torch.cat([counts[~small].double(), counts[small].sum()[None].double()])
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    used = expected > 0
    statistic = ((observed - expected)[used] ** 2 / expected[used]).sum()
    freedom = torch.tensor(float(max(int(used.sum()) - 1, 1)), dtype=torch.float64)
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def toy_logits(seed: int, nodes: int) -> torch.Tensor:
    return 1.5 * torch.randn(nodes, VOCAB, generator=torch.Generator().manual_seed(seed))


def context_logits(seed: int) -> torch.Tensor:
    """Logits of a toy model of order one: row t are those after token t; the last row starts the text."""
    return toy_logits(seed, VOCAB + 1)


def draft_batch(shape, draft, kind, generator, count):
    """`count` trees of one shape over the toy draft `draft` [V + 1, V] (probabilities): tokens [count, n], and q rows
    [count, V] of parents whose children were sampled without replacement."""
    tokens = torch.full((count, len(shape)), VOCAB)  # the root stands for the start of the text
    proposals = {}
    for node, children in enumerate(shape.children):
        if not children:
            continue
        q = draft[tokens[:, node]]
        if kind == "deterministic":
            order = q.argsort(dim=-1, descending=True)
            for rank, child in enumerate(children):
                tokens[:, child] = order[:, rank]
            continue
        proposals[node] = q
        for child in children:
            tokens[:, child] = draw(q, torch.rand(count, generator=generator, dtype=torch.float64))
            q = q.scatter(1, tokens[:, child : child + 1], 0.0)
            q = q / q.sum(dim=1, keepdim=True)
    return tokens, proposals


def emitted_pairs(shape, tokens, node, token, target, generator):
    """First two emitted tokens of each row; where only one came out, the second is drawn from the base."""
    first_child = torch.zeros_like(node)
    second_child = torch.zeros_like(node)
    for n in range(1, len(shape)):
        path = shape.path(n)
        here = node == n
        first_child = torch.where(here, path[0], first_child)
        if len(path) > 1:
            second_child = torch.where(here, path[1], second_child)
    row = torch.arange(len(node))
    first = torch.where(first_child > 0, tokens[row, first_child], token)
    drawn = draw(target[first], torch.rand(len(node), generator=generator, dtype=torch.float64))
    second = torch.where(second_child > 0, tokens[row, second_child], torch.where(first_child > 0, token, drawn))
    return first, second


def counts_of_rule(rule, shape, warp, kind, seed=0):
    """Counts [V, V] of the first two tokens of N runs of a rule, and the base's exact probabilities of them."""
    target, draft = warp(context_logits(seed)), warp(context_logits(seed + 100))
    generator = torch.Generator().manual_seed(seed)
    tokens, proposals = draft_batch(shape, draft, kind, generator, N)
    uniforms = torch.rand(N, len(shape), generator=generator, dtype=torch.float64)

    def probs_after(nodes):
        return target[tokens[torch.arange(N), nodes]]

    node, token = rule(shape, tokens, probs_after, proposals, uniforms)
    first, second = emitted_pairs(shape, tokens, node, token, target, generator)
    counts = torch.bincount(first * VOCAB + second, minlength=VOCAB * VOCAB)
    exact = target[VOCAB][:, None] * target[:VOCAB]
    return counts, exact.flatten()


@pytest.mark.parametrize(("shape", "warp", "kind"), CASES)
def test_every_rule_keeps_the_bases_distribution(shape, warp, kind):
    for seed in (0, 1):
        counts, exact = counts_of_rule(walk_trees, SHAPES[shape], WARPS[warp], kind, seed)
        assert p_value(counts, exact) > ALARM / TESTS


def always_from_base_if_first_rejected(shape, tokens, probs_after, proposals, uniforms):
    """A wrong rule: after a rejection it draws from p itself, not from the residual of p."""
    node, token = walk_trees(shape, tokens, probs_after, proposals, uniforms)
    fresh = draw(probs_after(torch.zeros_like(node)), uniforms[:, 0])
    return node, torch.where(node == 0, fresh, token)


def forgets_to_renormalize_q(shape, tokens, probs_after, proposals, uniforms):
    """A wrong rule: siblings are judged as if drawn with replacement."""
    initial = {parent: q for parent, q in proposals.items()}

    class Same(dict):
        def __setitem__(self, key, value):
            pass

    current = torch.zeros(len(tokens), dtype=torch.long)
    p = probs_after(current)
    for node, parent in enumerate(shape.parents[1:], 1):
        active = current == parent
        token, q = tokens[:, node : node + 1], initial[parent]
        chance = (p.gather(1, token) / q.gather(1, token))[:, 0]
        accepted = active & (uniforms[:, node] < chance)
        residual = (p - q).clamp_min(0)
        residual = residual / residual.sum(1, keepdim=True).clamp_min(1e-300)
        p = torch.where((active & ~accepted)[:, None], residual, p)
        current = torch.where(accepted, node, current)
        p = torch.where(accepted[:, None], probs_after(current), p)
    return current, draw(p, uniforms[:, 0])


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (always_from_base_if_first_rejected, "deterministic"),
        (always_from_base_if_first_rejected, "sampled"),
        (forgets_to_renormalize_q, "sampled"),
    ],
)
def test_the_same_test_catches_biased_rules(rule, kind):
    counts, exact = counts_of_rule(rule, SHAPES["wide"], WARPS["T=1"], kind)
    assert p_value(counts, exact) < ALARM / TESTS


def test_distinct_draws_follow_sampling_without_replacement():
    probs = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)

    def uniforms(*shape):
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    draws = draw_distinct(probs.expand(3000, -1), uniforms(3000, 2))
    counts = torch.bincount(draws[:, 0] * 4 + draws[:, 1], minlength=16)
    exact = probs[:, None] * probs / (1 - probs[:, None])
    assert p_value(counts, exact.fill_diagonal_(0).flatten()) > ALARM / TESTS
    assert sorted(draw_distinct(probs, uniforms(4)).tolist()) == [-1, 0, 1, 2]


class ToyDrafter(Drafter):
    """Draws (or picks) a tree from a toy draft of order one, as real drafters do from theirs."""

    name = "toy"

    def __init__(self, draft, shape, kind, generator):
        self.draft, self.shape, self.kind, self.generator = draft, shape, kind, generator

    def propose(self, token):
        tokens, proposals = {0: token}, {}
        for node, children in enumerate(self.shape.children):
            if not children:
                continue
            q = self.draft[tokens[node]]
            if self.kind == "sampled":
                proposals[node] = q
                picked = draw_distinct(q, torch.rand(len(children), generator=self.generator, dtype=torch.float64))
            else:
                picked = q.topk(len(children)).indices
            tokens |= dict(zip(children, picked.tolist(), strict=True))
        return DraftTree(tuple(tokens[n] for n in range(len(self.shape))), self.shape, (), proposals)


class ToyTarget(Target):
    """A base of order one over VOCAB tokens: logits are rows of a table. No cache rows are really kept."""

    def __init__(self, base, table):
        super().__init__(base, 64)
        self.table = table

    def prefill(self, prompt_ids, reusable=None, layers=(), argmax_only=False):
        return ForwardOutput(self.table[VOCAB][None], torch.zeros(len(prompt_ids), 1))

    def forward_tree(self, tree, layers=(), argmax_only=False):
        return ForwardOutput(self.table[torch.tensor(tree.tokens)], torch.zeros(len(tree), 1))

    def commit(self, tree, nodes):
        pass


@pytest.mark.parametrize(
    ("shape", "kind", "top_k"),
    [("tree", "deterministic", 0), ("tree", "sampled", 4)],
)
def test_the_whole_loop_keeps_the_bases_distribution(base, shape, kind, top_k):
    table = context_logits(5)
    warp = LogitsWarper(0.9, top_k, 0.95)
    config = {"temperature": 0.9, "top_p": 0.95, "top_k": top_k, "max_tokens": 3, "eos_ids": frozenset()}
    generator = torch.Generator().manual_seed(11)
    target = ToyTarget(base, table)
    drafter = ToyDrafter(warp(context_logits(6)) * 0.9 + 0.1 / VOCAB, SHAPES[shape], kind, generator)
    counts = torch.zeros(VOCAB, VOCAB, VOCAB)
    for seed in range(2000):
        steps = generate(target, drafter, [0], GenerateConfig(seed=seed, **config))
        counts[tuple(t.id for step in steps for t in step.tokens)] += 1
    probs = warp(table)
    exact = probs[VOCAB][:, None, None] * probs[:VOCAB][:, :, None] * probs[:VOCAB][None]
    assert p_value(counts.flatten(), exact.flatten()) > ALARM / TESTS


def test_a_draft_equal_to_the_base_is_always_accepted():
    shape = SHAPES["chain"]
    probs = LogitsWarper()(context_logits(0))
    generator = torch.Generator().manual_seed(0)
    tokens, proposals = draft_batch(shape, probs, "sampled", generator, 500)
    uniforms = torch.rand(500, len(shape), generator=generator, dtype=torch.float64)
    node, _ = walk_trees(shape, tokens, lambda n: probs[tokens[torch.arange(500), n]], proposals, uniforms)
    assert (node == 3).all()


def test_draws_never_leave_the_support_at_the_edges_of_the_unit_interval():
    probs = torch.tensor([[0.0, 0.4, 0.6, 0.0]], dtype=torch.float64)
    assert draw(probs, torch.tensor([0.0])).item() == 1
    assert draw(probs, torch.tensor([1.0 - 1e-16])).item() == 2


def test_warps_agree_with_transformers():
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(20, 50, generator=torch.Generator().manual_seed(3))
    expected = TemperatureLogitsWarper(0.7)(None, logits)
    expected = TopPLogitsWarper(0.85)(None, TopKLogitsWarper(12)(None, expected))
    torch.testing.assert_close(LogitsWarper(0.7, 12, 0.85)(logits), expected.double().softmax(-1), atol=1e-6, rtol=1e-5)
