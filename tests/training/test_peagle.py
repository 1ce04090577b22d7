"""P-EAGLE's training: the loss equals a literal one, and random depth sampling follows its settings."""

from dataclasses import replace

import pytest
import torch

from models.methods import train_config
from models.methods.peagle import expansion
from models.peagle import PEagleDraft
from tests.models.test_peagle import drafted_alone
from tests.training.test_losses import FAMILIES, batch, check_losses, in_answer, perturbed
from training.peagle import PEagleMethod, rollout_counts, sample_rollouts

__all__ = ["batch"]

DEPTHS = 3


def config(**changes):
    return train_config(method="peagle", **{"num_depths": DEPTHS, "mask_token_id": 7, **changes})


def method_for(base, layers=1, vocabulary=None, **changes):
    torch.manual_seed(2)
    draft = PEagleDraft.from_base(
        base, vocabulary, mask_token_id=7, num_depths=DEPTHS, aux_layers=(0, 1, 1), eagle_num_layers=layers
    )
    return perturbed(PEagleMethod(config(**changes), base, draft))


@pytest.mark.parametrize(
    ("family", "layers", "small", "answers"),
    [*((name, 1, False, 1) for name in FAMILIES), ("llama", 2, True, 2), ("llama", 1, True, 2)],
)
def test_the_loss_equals_the_literal_one(family, layers, small, answers, base_of, batch):
    base = base_of(family)
    if answers == 2:  # a user's turn between two answers
        batch = replace(batch, mask=batch.mask.clone())
        for row, tokens in enumerate(batch.mask):
            first = int(tokens.nonzero()[0])
            batch.mask[row, first + 5 : first + 8] = False
    ids = torch.arange(0, base.vocab_size, 2) if small else None
    method = method_for(base, layers, ids, down_sample_ratio=1.0)
    features, draft = method.features(batch), method.draft
    _, aux = base.forward_hidden(batch.input_ids, layers=draft.layers_wanted)
    fused, logits = draft.fuse(None, aux), base.model(batch.input_ids).logits
    total, count = torch.zeros(()), 0
    for b in range(3):
        for t in range(int(batch.lengths[b]) - 2):
            reached = [d for d in range(DEPTHS) if in_answer(batch.mask, b, *range(t + 1, t + 3 + d))]
            if not reached:
                continue
            out = drafted_alone(draft, fused[b], batch.input_ids[b, 1:], t, reached[-1])
            q = draft.logits(out).log_softmax(-1)
            for d in reached:
                p = logits[b, t + 1 + d][draft.draft_ids].softmax(-1)
                total, count = total - (p * q[d]).sum(), count + 1
    outcome = check_losses(method, features, [total])
    assert method.counts(features).tolist() == [count] == [int(outcome.valid.sum())]


def test_ranks_without_a_loss_are_those_of_the_same_rollouts(base, batch):
    """`drafted` computes every rollout; its hits are those of the loss where the base's top token is the label."""
    method = method_for(base, down_sample_ratio=1.0)
    features = method.features(batch)
    drafted, trained = method.drafted(features), method(features)
    assert torch.equal(drafted.valid, trained.valid)
    assert torch.equal(drafted.hits & drafted.valid, trained.hits & trained.valid), "the answers are greedy"


REACHED = torch.arange(1000)[:, None] % 10 > torch.arange(5)
"""Of 1000 rollouts, 900 reach depth 0, 800 depth 1, …"""


@pytest.mark.parametrize(("ratio", "least"), [(0.7, 0.2), (0.5, 0.0), (1.0, 0.2), (0.1, 0.2)])
def test_sampled_rollouts_are_nested_have_fixed_numbers_and_differ_by_seed(ratio, least):
    first, second = (sample_rollouts(REACHED, ratio, least, torch.Generator().manual_seed(s)) for s in (0, 1))
    counts = [900 - 100 * d for d in range(5)]
    expected = [int(n * max(ratio**d, least)) if d else n for d, n in enumerate(counts)]
    assert first.sum(0).tolist() == second.sum(0).tolist() == expected == rollout_counts(counts, ratio, least)
    assert not (first & ~REACHED).any() and not (first[:, 1:] & ~first[:, :-1]).any()
    assert ratio == 1 or not torch.equal(first, second)


def test_every_rollout_can_be_sampled():
    generator = torch.Generator().manual_seed(0)
    counts = sum(sample_rollouts(REACHED[:50], 0.7, 0.2, generator).int() for _ in range(100))
    assert (counts[REACHED[:50]] > 0).all()


def test_the_seed_chooses_the_rollouts_and_the_count_is_known_before(base, batch):
    method = method_for(base)
    features = method.features(batch)
    one, again, other = (method(features, seed) for seed in (5, 5, 6))
    assert torch.equal(one.loss, again.loss) and not torch.equal(one.loss, other.loss)
    assert method.counts(features).tolist() == [int(one.valid.sum())] == [int(other.valid.sum())]
    whole = [int(n) for n in (features["labels"] >= 0).sum((0, 1))]
    assert sum(rollout_counts(whole, 0.7, 0.2)) <= expansion(config()) * whole[0]


@pytest.mark.parametrize("changes", [{"num_depths": 1}, {"num_depths": 16}, {"down_sample_ratio": 0.0}])
def test_extremes_train(changes, base, batch, conversations):
    """One depth is EAGLE-3 without unrolling; answers shorter than all depths leave the deepest ones empty."""
    method = PEagleMethod(config(**changes), base, None, conversations)
    features = method.features(batch)
    outcome = method(features, 0, 1 / method.counts(features))
    outcome.loss.backward()
    assert outcome.loss > 0 and method.draft.lm_head.weight.grad.isfinite().all()
    assert method.drafted(features).hits.shape[1] == changes.get("num_depths", DEPTHS)


def test_a_batch_without_an_answer_has_no_loss(base, batch):
    method = method_for(base)
    features = method.features(replace(batch, mask=torch.zeros_like(batch.mask)))
    outcome = method(features, 0, torch.ones(1))
    outcome.loss.backward()
    assert method.counts(features).tolist() == [0] and outcome.loss == 0
