"""P-EAGLE's drafter: each proposal equals one recomputed from the whole text, in one forward of the draft."""

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.target import Target, fast_target
from models.base import load_base
from models.peagle import PEagleDraft
from speculoos.errors import BadInput
from tests.decoding.conftest import greedy, ids_of, run, tokens_of
from tests.decoding.replay import ReplayDrafter
from tests.models.test_peagle import drafted_alone

TREES = ([[0, 0, 0], [0, 1], [1, 0]], [[0, 0, 0, 0]], [[0], [1]])
SHAPES = (*({"tree": tree} for tree in TREES), {"depth": 2, "nodes": 9})


def new_draft(base, **options) -> PEagleDraft:
    torch.manual_seed(1)
    options = {"draft_ids": torch.arange(5, base.vocab_size), "mask_token_id": 7, **options}
    return PEagleDraft.from_base(base, **options).eval()


class CheckedDrafter(ReplayDrafter):
    """Proposes the right tokens from a recording, so that several nodes are committed a step, and compares the tree of
    `drafter` with one recomputed from the whole text."""

    def __init__(self, drafter, draft, base, recorded):
        super().__init__(recorded, 3, base.vocab_size)
        self.drafter, self.draft, self.base, self.layers, self.checks = drafter, draft, base, drafter.layers, 0

    def max_reusable_prefix(self, prompt_ids):
        return self.drafter.max_reusable_prefix(prompt_ids)

    def prefill(self, start):
        super().prefill(start)
        self.text = [*start.prompt_ids, start.token]
        self.drafter.prefill(start)

    def update(self, tokens, target_output, nodes):
        super().update(tokens, target_output, nodes)
        self.text += tokens
        self.drafter.update(tokens, target_output, nodes)

    @torch.inference_mode()
    def propose(self, token):
        tree, again = self.drafter.propose(token), self.drafter.propose(token)
        assert tree.tokens == again.tokens, "nothing of the tree stays in the cache"
        hidden, aux = self.base.forward_hidden(torch.tensor([self.text[:-1]]), layers=self.draft.layers_wanted)
        features, ids = self.draft.fuse(hidden, aux)[0], torch.tensor(self.text[1:])
        out = drafted_alone(self.draft, features, ids, len(ids) - 1, tree.shape.max_depth - 1)
        logprobs = self.draft.logits(out).log_softmax(-1)
        best = self.draft.to_target(logprobs.argsort(-1, descending=True))
        for node, (depth, rank) in enumerate(zip(tree.shape.depths, tree.shape.ranks, strict=True)):
            if node:
                assert tree.tokens[node] == int(best[depth - 1, rank])
                assert tree.logprobs[node] == pytest.approx(
                    float(logprobs[depth - 1].sort(descending=True).values[rank]), abs=1e-4
                )
                self.checks += 1
        return super().propose(token)


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("layers", [1, 2])
def test_every_tree_equals_one_recomputed_from_the_whole_text(options, layers, base):
    draft = new_draft(base, eagle_num_layers=layers)
    prompt = ids_of(base, "the quick brown fox")
    recorded, target = greedy(base, prompt, 24)[0], Target(base, 96)
    checked = CheckedDrafter(make_drafter(target, draft, options), draft, base, recorded)
    run(target, checked, prompt, max_tokens=13)
    run(target, checked, prompt + recorded[:9] + ids_of(base, " dog"), max_tokens=5)  # a second turn
    assert checked.checks > 10
    checked.drafter.cache.check_integrity()


@pytest.mark.parametrize("options", SHAPES)
@pytest.mark.parametrize("make_target", [Target, fast_target])
def test_greedy_text_is_the_bases_own(options, make_target, tiny_base):
    base = load_base(tiny_base)
    draft, prompt = new_draft(base), ids_of(base, "the quick brown fox")
    expected = greedy(base, prompt, 24)[0]
    target = make_target(base, 96)
    drafter = make_drafter(target, draft, options)
    assert tokens_of(run(target, drafter, prompt, max_tokens=24)) == expected


def test_one_forward_drafts_all_depths(base, monkeypatch):
    draft, target = new_draft(base), Target(base, 96)
    drafter = make_drafter(target, draft, {"tree": [[0, 0, 0, 0]]})
    forwards = []
    forward = draft.forward
    # the real forward runs; only its rows are counted
    monkeypatch.setattr(draft, "forward", lambda *args: forwards.append(args[1].shape[1]) or forward(*args))
    steps = run(target, drafter, ids_of(base, "the quick brown fox"), max_tokens=8)
    accepted = [len(step.tokens) for step in steps[1:-1]]
    assert forwards[1:] == [3, *(count + 3 for count in accepted)], "after the prompt; then accepted and masked rows"


def test_children_are_sampled_from_the_drafts_distribution_of_their_depth(base):
    """Any proposal from a known distribution is lossless (tests/decoding/test_lossless.py)."""
    draft, target = new_draft(base), Target(base, 96)
    drafter = make_drafter(target, draft, {"tree": [[0, 0], [1, 0]], "sample": True})
    trees = []
    propose = drafter.propose
    drafter.propose = lambda token: trees.append(propose(token)) or trees[-1]
    run(target, drafter, ids_of(base, "the quick brown fox"), max_tokens=8, temperature=1.0, seed=0)
    assert len(trees) > 2
    for tree in trees:
        assert set(tree.proposals) == {0, 1, 2}
        torch.testing.assert_close(tree.proposals[1], tree.proposals[2])
        assert not torch.allclose(tree.proposals[0], tree.proposals[1])


def test_the_default_tree_is_as_deep_as_the_draft_and_a_deeper_one_is_refused(base):
    target = Target(base, 96)
    assert make_drafter(target, new_draft(base, num_depths=2)).growth.max_depth == 2
    assert make_drafter(target, new_draft(base, num_depths=8)).growth.max_depth == 4
    with pytest.raises(BadInput, match="3 deep and this draft has 2 depths"):
        make_drafter(target, new_draft(base, num_depths=2), {"tree": [[0, 0, 0]]})
