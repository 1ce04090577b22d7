"""DFlash's loss against its definition: each block computed alone, as the engine drafts it."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from models.block_attention import BlockBackend
from models.dflash import DFlashDraft
from models.methods import train_config
from speculoos.errors import BadInput
from tests.training.test_loop import Notebook, config
from tests.training.test_losses import FAMILIES, check_losses, family_logits, in_answer, perturbed
from training.batches import collate
from training.dflash import DFlashMethod
from training.loop import train
from training.method import with_draws

DEPTH = 3


@pytest.fixture(scope="module")
def batch(conversations):
    """Three rows, each with a user's turn between two answers."""
    batch = collate(conversations[:3])
    batch = replace(batch, mask=batch.mask.clone())
    for row, tokens in enumerate(batch.mask):
        start = int(tokens.int().argmax()) + 5 + row
        batch.mask[row, start : start + 3] = False
    return batch


def block_logits(draft, base, aux, ids, anchor):
    """Logits [DEPTH, columns] of the block at `anchor`, from features [L, layers · H] of one row; before the rule."""
    context, positions = draft.fuse(aux[None, :anchor]), torch.arange(anchor + DEPTH + 1)[None]
    backend = BlockBackend(torch.zeros(1, dtype=torch.long), torch.tensor([anchor]), 1)
    x = draft(
        draft.block_ids(ids[anchor : anchor + 1]), positions[:, anchor:], backend, (context, positions[:, :anchor])
    )
    return family_logits(base, F.linear(x[0, 1:], draft.head.weight, draft.head.bias))


def literal_loss(method, base, batch, weights_of):
    """(weighted sum of the losses, number of counted positions)"""
    draft, kind = method.draft, method.config.dflash_loss
    _, aux = base.forward_hidden(batch.input_ids, layers=draft.layers_wanted)
    aux, theirs = torch.cat(aux, -1), base.model(batch.input_ids).logits
    total, count = torch.zeros(()), 0
    for b, ids in enumerate(batch.input_ids):
        for a in range(1, int(batch.lengths[b]) - 1):
            inside = [k for k in range(1, DEPTH + 1) if in_answer(batch.mask, b, *range(a, a + k + 1))]
            if not inside:
                continue
            logits = block_logits(draft, base, aux[b], ids, a)
            losses = {}
            for k in inside:
                log_q = logits[k - 1].log_softmax(-1)
                log_p = theirs[b, a + k - 1][draft.draft_ids].log_softmax(-1)
                column = int(draft.to_draft(ids[a + k]))
                if column >= 0:
                    losses[k] = {
                        "ce": -log_q[max(column, 0)],
                        "kl": (log_p.exp() * (log_p - log_q)).sum(),
                        "reverse_kl": (log_q.exp() * (log_q - log_p)).sum(),
                    }[kind]
            for k, weight in weights_of(losses).items():
                total, count = total + weight * losses[k], count + 1
    return total, count


def decayed(losses):
    return {k: torch.exp(torch.tensor(-(k - 1) / 4.0)) for k in losses}


def dpace(losses):
    """Σ over j ≥ k of the product of smoothed confidences up to j; positions that do not count are left out."""
    smooth = {k: 0.5 * torch.exp(-loss.detach()) + 0.5 for k, loss in losses.items()}
    run = {j: torch.stack([smooth[i] for i in smooth if i <= j]).prod() for j in smooth}
    return {k: sum(run[j] for j in run if j >= k) for k in losses}


CASES = [
    *((family, "ce", "decay", False) for family in FAMILIES),
    *(("llama", kind, "decay", small) for kind in ("kl", "reverse_kl") for small in (False, True)),
    *(("llama", "ce", "dpace", small) for small in (False, True)),
    *(("phi", "ce", "decay", True), ("cohere", "kl", "decay", True)),
]


@pytest.mark.parametrize(("family", "kind", "weights", "small"), CASES)
def test_the_dflash_loss_equals_the_literal_one(family, kind, weights, small, base_of, batch):
    base = base_of(family)
    settings = train_config("dflash", block_size=DEPTH + 1, dflash_loss=kind, position_weights=weights)
    ids = torch.arange(0, base.vocab_size, 2) if small else None
    draft = DFlashDraft.from_base(base, ids, dflash_num_layers=2, block_size=DEPTH + 1)
    method = perturbed(DFlashMethod(settings, base, draft))
    features = method.features(batch)
    total, count = literal_loss(method, base, batch, decayed if weights == "decay" else dpace)
    check_losses(method, features, [total])
    assert method.counts(features).tolist() == [count] and count > 20


def test_a_step_takes_some_blocks_at_random_the_same_for_the_same_seed(base, batch):
    settings = train_config("dflash", block_size=DEPTH + 1, max_anchors=6)
    method = perturbed(DFlashMethod(settings, base))
    features = method.features(batch)
    one, again, other = (with_draws(method, features, seed) for seed in (1, 1, 2))
    assert torch.equal(one["chosen"], again["chosen"]) and not torch.equal(one["chosen"], other["chosen"])
    assert len(one["chosen"]) == 6 and "chosen" not in features
    assert torch.equal(method(one).loss_sums, method(again).loss_sums)
    parts = [method({**features, "chosen": index[None]}) for index in one["chosen"]]
    assert torch.allclose(method(one).loss_sums, sum(part.loss_sums for part in parts), rtol=1e-5)
    assert method(one).hits.shape == (6, DEPTH)
    everything = with_draws(method, features, 0 if method.config.max_anchors > len(features["row"]) else 3)
    assert int(method.counts(everything)) <= int(method.counts(features))


def test_chunks_of_blocks_change_nothing(base, batch, monkeypatch):
    method = perturbed(DFlashMethod(train_config("dflash", block_size=DEPTH + 1), base))
    features = method.features(batch)

    def loss_and_gradients():
        outcome = method(features)
        outcome.loss.backward()
        gradients = [p.grad.clone() for p in method.parameters() if p.grad is not None]
        method.zero_grad()
        return outcome.loss, gradients

    whole = loss_and_gradients()
    monkeypatch.setattr("models.block_attention.QUERIES", 2 * (DEPTH + 1))
    chunked = loss_and_gradients()
    assert torch.allclose(whole[0], chunked[0]) and len(whole[1]) == len(chunked[1]) > 5
    for a, b in zip(whole[1], chunked[1], strict=True):
        assert torch.allclose(a, b, atol=1e-5)


def test_a_batch_without_a_block_has_no_loss_and_gradients_of_zero(base, batch):
    """All parameters have a gradient, because other processes wait for them."""
    method = DFlashMethod(train_config("dflash", block_size=DEPTH + 1), base)
    features = method.features(replace(batch, mask=torch.zeros_like(batch.mask)))
    outcome = method(features)
    outcome.loss.backward()
    assert method.counts(features).tolist() == [0] and outcome.loss == 0
    gradients = [parameter.grad for parameter in method.parameters() if parameter.requires_grad]
    assert len(gradients) > 5 and all(gradient is not None and not gradient.any() for gradient in gradients)


def test_embeddings_and_head_stay_the_bases(base, batch):
    method = DFlashMethod(train_config("dflash"), base)
    assert not [name for name, _ in method.draft.named_parameters() if "embed" in name or "head" in name]
    small = DFlashDraft.from_base(base, torch.arange(50))
    assert not small.lm_head.weight.requires_grad
    assert torch.equal(small.lm_head.weight, base.lm_head.weight[:50])


def test_accumulated_batches_count_their_blocks_together(tiny_base, dataset, tmp_path):
    """The loss of a step of two batches is that of all their blocks, and a resumed run draws the same ones (all
    methods: test_loop.py)."""
    notes = Notebook()
    settings = config("dflash", block_size=4, accumulate=2, max_anchors=5, max_steps=3, eval_every=0)
    train(settings, tiny_base, dataset, tmp_path / "out", reporter=notes)
    assert len(notes.curve()) == 3 and all(loss > 0 for loss in notes.curve().values())


def test_settings_that_do_not_fit_are_refused(base):
    with pytest.raises(BadInput, match="dpace needs dflash_loss ce"):
        train_config("dflash", dflash_loss="kl", position_weights="dpace")
