"""Losses chosen by a setting equal their formulas, gradients included; D-PACE equals its definition."""

from itertools import product

import pytest
import torch

from models.eagle3 import Eagle3Draft
from models.families import IDENTITY_RULE, LogitRule
from models.logits import Head
from models.methods import train_config
from models.methods.record import LOSS_CHUNK_FLOATS
from tests.training.test_losses import check_losses, in_answer, perturbed
from training.batches import collate
from training.eagle3 import Eagle3Method
from training.losses import DISTANCES, block_loss, dpace_weights, hard_loss, label_losses, unrolled_loss
from training.medusa import MedusaMethod

ALPHA = 0.3


@pytest.fixture(scope="module")
def batch(conversations):
    return collate(conversations[:3])


def distance(kind, q_logits, p_logits):
    """The distance of each row [N]."""
    log_q, log_p = q_logits.log_softmax(-1), p_logits.log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    of_tokens = {
        "ce": -p * log_q,
        "kl": p * (log_p - log_q),
        "reverse_kl": q * (log_q - log_p),
        "tv": (p - q).abs() / 2,
    }
    return of_tokens[kind].sum(-1)


@pytest.mark.parametrize("rule", [IDENTITY_RULE, LogitRule(1.5, 2.0)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", DISTANCES)
def test_unrolled_distances_equal_their_formulas(kind, weighted, rule, monkeypatch):
    monkeypatch.setitem(LOSS_CHUNK_FLOATS, "cpu", 16 * 50)
    torch.manual_seed(0)
    x, target = torch.randn(60, 8, requires_grad=True), torch.randn(37, 6)
    head = Head(torch.randn(50, 8, requires_grad=True), torch.randn(50, requires_grad=True), rule)
    target_head, scale = Head(torch.randn(50, 6), None, rule), torch.tensor([2.0, 0.5])
    indices = [torch.arange(37), torch.arange(37)[7:30]]
    weights = torch.rand(60) if weighted else None
    total, sums, hits = unrolled_loss(x, head, target, target_head, indices, scale, kind, weights)
    rows = distance(kind, head(x), target_head(target)[torch.cat(indices)])
    literal = [part.sum() for part in (rows if weights is None else rows * weights).split([37, 23])]
    assert torch.allclose(sums, torch.stack(literal), rtol=1e-5)
    assert torch.equal(torch.cat(hits), head(x).argmax(-1) == target_head(target)[torch.cat(indices)].argmax(-1))
    wrt = (x, head.weight, head.bias)
    literal_grads = torch.autograd.grad((torch.stack(literal) * scale).sum(), wrt)
    for a, b in zip(torch.autograd.grad(total, wrt), literal_grads, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["ce", "kl"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_may_have_more_positions_than_a_chunk_has_rows(kind, dtype, monkeypatch):
    """Positions that do not count are no hits, whichever token is on top."""
    monkeypatch.setitem(LOSS_CHUNK_FLOATS, "cpu", 16 * 50)
    torch.manual_seed(0)
    x, labels = torch.randn(3, 20, 8), torch.randint(0, 50, (3, 20))
    head, target_head = (Head(torch.randn(50, 8).to(dtype), torch.zeros(50, dtype=dtype)) for _ in range(2))
    labels[1:] = 0
    labels[:, 15:] = -100
    head.bias[0] = 1e4
    targets = torch.randn(60, 8), target_head, torch.arange(60).view(3, 20)
    options = (lambda losses, counted: torch.ones_like(losses), torch.ones(1), kind, targets if kind == "kl" else None)
    _, sums, hits = block_loss(x, head, labels, *options)
    assert torch.equal(hits, labels == 0) and sums.isfinite().all()


def test_cross_entropy_of_weighted_rows(monkeypatch):
    monkeypatch.setitem(LOSS_CHUNK_FLOATS, "cpu", 16 * 50)
    x, labels, weights = torch.randn(40, 8, requires_grad=True), torch.randint(0, 50, (40,)), torch.rand(40)
    head = Head(torch.randn(50, 8, requires_grad=True), torch.randn(50, requires_grad=True))
    rows = torch.nn.functional.cross_entropy(head(x), labels, reduction="none")
    total, _ = hard_loss(x, head, labels, weights)
    wrt = (x, head.weight, head.bias)
    literal = torch.autograd.grad((rows * weights).sum(), wrt)
    for a, b in zip(torch.autograd.grad(total, wrt), literal, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-5)
    labels[3] = -100
    losses = label_losses(x, head, labels)
    assert losses[3] == torch.inf and torch.allclose(losses[4:], rows[4:], rtol=1e-5)


def test_total_variation_is_the_probability_of_a_rejection():
    """A sampled draft token is accepted with the probability Σ min(p, q)."""
    head = Head(torch.eye(3))
    q, p = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.3, 0.5]])
    total, _, _ = unrolled_loss(q.log(), head, p.log(), head, [torch.arange(1)], torch.ones(1), "tv")
    assert float(total) == pytest.approx(1 - torch.minimum(p, q).sum().item())


def literal_weights(losses, alpha):
    """The weights of the counted positions of one draft: w_j = Σ_{m ≥ j} c_1 ⋯ c_m."""
    reached, products = 1.0, []
    for loss in losses:
        reached = reached * ((1 - alpha) * torch.exp(-loss.detach()) + alpha)
        products.append(reached)
    return [sum(products[j:]) for j in range(len(products))]


def test_dpace_weighs_a_position_by_what_its_draft_can_still_gain():
    losses = -torch.tensor([[0.8, 0.5, 1.0], [1.0, 0.2, 1.0]]).log()
    weights = dpace_weights(losses, torch.ones(2, 3, dtype=torch.bool), 0.5)
    # 0.9, 0.9 · 0.75 and 0.9 · 0.75 · 1 are the probabilities of one, two and three tokens
    assert weights[0].tolist() == pytest.approx([2.25, 1.35, 0.675])
    assert weights[1].tolist() == pytest.approx([2.2, 1.2, 0.6])
    skipped = dpace_weights(losses, torch.tensor([[True, False, True]] * 2), 0.5)
    assert skipped[0].tolist() == pytest.approx([1.8, 0, 0.9])
    assert dpace_weights(losses, torch.ones(2, 3, dtype=torch.bool), 1.0).tolist() == [[3, 2, 1]] * 2


@pytest.mark.parametrize("kind", ["kl", "reverse_kl", "tv", "dpace"])
def test_the_eagle3_losses_equal_the_literal_ones(kind, base_of, batch):
    base = base_of("llama")
    config = train_config(method="eagle3", ttt_steps=3, ttt_loss=kind, dpace_alpha=ALPHA)
    ids = torch.arange(0, base.vocab_size, 2)
    method = perturbed(Eagle3Method(config, base, Eagle3Draft.from_base(base, ids)))
    features = method.features(batch)
    hidden, aux = base.forward_hidden(batch.input_ids, layers=method.draft.layers_wanted)
    theirs, draft = base.model(batch.input_ids).logits, method.draft
    loss_sums = [torch.zeros(()) for _ in range(3)]
    for b, t in [(row, t) for row in range(3) for t in range(int(batch.lengths[row]) - 2)]:
        states, losses = draft.fuse(hidden, aux)[b : b + 1, : t + 1], {}
        for j in range(3):
            if not in_answer(batch.mask, b, *range(t + 1, t + 3 + j)):
                break
            out = draft(states, batch.input_ids[b, 1 : t + 2 + j][None], torch.arange(t + 1 + j)[None])
            p_logits, q_logits = theirs[b, t + 1 + j], draft.logits(out[0, -1])
            if bool(draft.t2d[p_logits.argmax()]):
                column = draft.to_draft(batch.input_ids[b, t + 2 + j])
                label_loss = -q_logits.log_softmax(-1)[column] if column >= 0 else torch.tensor(torch.inf)
                losses[j] = distance("ce" if kind == "dpace" else kind, q_logits, p_logits[draft.draft_ids]), label_loss
            states = torch.cat([states, out[:, -1:]], 1)
        weights = (
            literal_weights([label_loss for _, label_loss in losses.values()], ALPHA)
            if kind == "dpace"
            else [1.0] * len(losses)
        )
        for (j, (loss, _)), weight in zip(losses.items(), weights, strict=True):
            loss_sums[j] = loss_sums[j] + weight * loss
    check_losses(method, features, loss_sums)
    assert method.weights == pytest.approx([1.0] * 3 if kind == "dpace" else [1.0, 0.8, 0.64])


def test_medusas_dpace_loss_equals_the_literal_one(base_of, batch):
    base = base_of("llama")
    config = train_config(medusa_num_heads=3, medusa_loss="dpace", dpace_alpha=ALPHA)
    method = perturbed(MedusaMethod(config, base))
    hidden, _ = base.forward_hidden(batch.input_ids)
    loss_sums = [torch.zeros(()) for _ in range(3)]
    for b, t in product(range(3), range(batch.input_ids.shape[1])):
        losses = [
            -method.draft.output(i)(method.draft.blocks[i](hidden[b, t])).log_softmax(-1)[batch.input_ids[b, t + 2 + i]]
            for i in range(3)
            if in_answer(batch.mask, b, *range(t + 1, t + 3 + i))
        ]
        for i, (loss, weight) in enumerate(zip(losses, literal_weights(losses, ALPHA), strict=True)):
            loss_sums[i] = loss_sums[i] + weight * loss
    check_losses(method, method.features(batch), loss_sums)
    assert method.weights == [1.0] * 3
