"""DFlash's drafter: cached context equals recomputed context, trees hold the ranks of each position, sampled nodes
follow the draft's distribution."""

from itertools import pairwise

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.drafters.dflash import tuning
from decoding.sampling import LogitsWarper
from decoding.target import Target
from decoding.tree import shape_from_choices
from models.block_attention import BlockBackend
from models.dflash import DFlashDraft
from models.methods import trees
from models.methods.dflash import fused_layers
from speculoos.errors import BadInput
from tests.decoding.conftest import greedy, ids_of, run, tokens_of

BLOCK = 6
TREE = [[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]]


@pytest.fixture(scope="module")
def draft(base):
    torch.manual_seed(0)
    return DFlashDraft.from_base(base, dflash_num_layers=2, block_size=BLOCK).eval()


@pytest.fixture(scope="module")
def small(base):
    torch.manual_seed(0)
    return DFlashDraft.from_base(base, torch.arange(0, base.vocab_size, 2), block_size=BLOCK).eval()


@torch.no_grad()
def uncached_logits(draft, base, ids):
    """Logits [BLOCK - 1, columns] after `ids`, whose last token starts the block. Computed without a cache."""
    *before, token = ids
    _, aux = base.forward_hidden(torch.tensor([before]), layers=draft.layers_wanted)
    positions = torch.arange(len(before) + BLOCK)[None]
    context = draft.fuse(torch.cat(aux, -1)), positions[:, : len(before)]
    backend = BlockBackend(torch.zeros(1, dtype=torch.long), torch.tensor([len(before)]), 1)
    x = draft(draft.block_ids(torch.tensor([token])), positions[:, len(before) :], backend, context)
    return draft.logits(x[0, 1:])


def check_steps(steps, prompt, draft, base, shape):
    """Every proposed node has the token of its rank at its position after the whole text so far."""
    text = list(prompt)
    for before, step in pairwise(steps):
        text += [token.id for token in before.tokens]
        logits = uncached_logits(draft, base, text)
        order, logprobs = logits.argsort(descending=True), logits.log_softmax(-1)
        record = step.draft_record
        assert len(record.tokens) == len(shape) - 1
        for node, token in enumerate(record.tokens):
            column = order[record.depths[node] - 1, record.ranks[node]]
            assert token == int(draft.to_target(column)), "another token than the draft's of this rank"
            assert record.logprobs[node] == pytest.approx(float(logprobs[record.depths[node] - 1, column]), abs=1e-4)


@pytest.mark.parametrize("kind", ["draft", "small"])
def test_a_tree_holds_the_ranks_of_each_position_after_the_whole_text(kind, base, request):
    draft = request.getfixturevalue(kind)
    prompt = ids_of(base, "the quick brown fox")
    steps = run(Target(base, 160), make_drafter(Target(base, 160), draft, {"tree": TREE}), prompt, max_tokens=12)
    check_steps(steps, prompt, draft, base, shape_from_choices(TREE))


def test_context_is_kept_and_dropped_with_the_targets(base, draft):
    """The prompts share prefixes and become longer and shorter."""
    target = Target(base, 160)
    drafter = make_drafter(target, draft, {"depth": BLOCK - 1})
    long, short = ids_of(base, "the quick brown fox jumps over"), ids_of(base, "the quick")
    for prompt in (long, short, long, [*long, 7, 8]):
        steps = run(target, drafter, prompt, max_tokens=8)
        check_steps(steps, prompt, draft, base, drafter.growth.shape)
        assert tokens_of(steps) == greedy(base, prompt, 8)[0]
        rows = drafter.cache.length + sum(map(len, drafter.pending))
        assert rows == len(drafter.ids) == len(target.ids)
    drafter.cache.check_integrity()
    assert drafter.max_reusable_prefix([*long, 9]) == len(long)


@pytest.mark.parametrize("kind", ["draft", "small"])
def test_sampled_nodes_come_with_the_distribution_of_their_position(kind, base, request):
    draft = request.getfixturevalue(kind)
    target, prompt = Target(base, 160), ids_of(base, "1 2 3 + 1 2")
    warp, proposed = LogitsWarper(0.8, top_p=0.9), []
    drafter = make_drafter(target, draft, {"tree": TREE, "sample": True})
    propose = drafter.propose
    drafter.propose = lambda token: proposed.append(propose(token)) or proposed[-1]
    steps = run(target, drafter, prompt, max_tokens=10, temperature=0.8, top_p=0.9, seed=3)
    assert steps and proposed
    text = [*prompt, *(t.id for t in steps[0].tokens)]
    q = warp(uncached_logits(draft, base, text))
    tree = proposed[0]
    for node, row in tree.proposals.items():
        expected = torch.zeros(base.vocab_size, dtype=row.dtype)
        expected[draft.draft_ids] = q[tree.shape.depths[node]].to(row.dtype)
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=1e-4)
        children = [tree.tokens[child] for child in tree.shape.children[node]]
        assert len({*children}) == len(children) and all(row[token] > 0 for token in children)
    assert not make_drafter(target, draft).sample, "the best tokens, unless asked"


def test_a_measured_pass_computes_all_sequences_and_changes_nothing(base, small):
    target, prompt = Target(base, 160), ids_of(base, "the quick brown fox")
    drafter = make_drafter(target, small, {"depth": 2})
    run(target, drafter, prompt, max_tokens=3)
    tree, before = drafter.propose(drafter.last), drafter.cache.length
    assert drafter.network_pass(3)().shape == (3 * 2, len(small.draft_ids))
    assert drafter.cache.length == before and drafter.propose(drafter.last).tokens == tree.tokens


def test_a_tree_deeper_than_the_block_is_refused(base, draft):
    with pytest.raises(BadInput, match="6 deep and this draft fills 5 tokens"):
        make_drafter(Target(base, 64), draft, {"depth": BLOCK})
    with pytest.raises(BadInput, match="the 401 best tokens"):
        make_drafter(Target(base, 64), draft, {"tree": [[400]]})


def test_a_large_block_is_tuned_up_to_the_deepest_tree(base):
    space = tuning(DFlashDraft.from_base(base, block_size=64))
    assert space.deepest == trees.MAX_DEPTH
    trees.check(space.at_depth(space.deepest)["tree"])


def test_layers_are_chosen_as_z_lab_does():
    assert fused_layers(36) == (1, 9, 17, 25, 33) and fused_layers(24) == (1, 6, 11, 16, 21)
    assert fused_layers(30) == (1, 8, 14, 20, 27) and fused_layers(2) == (0,) and fused_layers(8, 1) == (4,)
