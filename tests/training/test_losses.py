"""Every loss equals a slow, literal reference written from its definition, to 1e-5, gradients included."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.eagle3 import Eagle3Draft
from models.families import IDENTITY_RULE, LogitRule
from models.logits import Head
from models.methods import train_config
from models.methods.record import LOSS_CHUNK_FLOATS
from training.batches import TokenizedConversation, collate
from training.eagle import EagleMethod
from training.eagle3 import Eagle3Method, pad_positions_by_row
from training.losses import DISTANCES, hard_loss, label_losses, soft_loss, unrolled_loss
from training.medusa import MedusaMethod, medusa_labels
from training.method import make_method
from training.standalone import StandaloneMethod

FAMILIES = ("llama", "phi", "granite", "gemma2", "cohere")
"""A head as most have it; one with a bias; logits with a scale (two ways to write it) and with a cap."""
RULES = (IDENTITY_RULE, LogitRule(0.3), LogitRule(cap=3.0), LogitRule(1.5, 2.0))


@pytest.fixture(scope="module")
def batch(conversations):
    return collate(conversations[:3])


def perturbed(method, scale=0.05):
    """Move the weights away from their start, so that nothing is zero by construction."""
    torch.manual_seed(1)
    with torch.no_grad():
        for p in method.parameters():
            p.add_(torch.randn_like(p) * scale)
    return method.eval()


def check_losses(method, features, literal_sums):
    """Compare the method's sums and gradients with a differentiable literal computation."""
    weights = torch.arange(1.0, 1 + len(literal_sums))
    outcome = method(features, scale=weights)
    assert torch.allclose(outcome.loss_sums, torch.stack(literal_sums), rtol=1e-5, atol=1e-4)
    parameters = [p for p in method.parameters() if p.requires_grad]
    ours = torch.autograd.grad(outcome.loss, parameters, allow_unused=True)
    theirs = torch.autograd.grad((torch.stack(literal_sums) * weights).sum(), parameters, allow_unused=True)
    for a, b in zip(ours, theirs, strict=True):
        if b is None or not b.abs().max():
            assert a is None or not a.abs().max()
        else:
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-5 * float(b.abs().max()))
    return outcome


def in_answer(mask, b, *positions):
    return all(0 <= s < mask.shape[1] and bool(mask[b, s]) for s in positions)


def cross_entropy(q_logits, p_logits):
    return -(p_logits.softmax(-1) * q_logits.log_softmax(-1)).sum()


def family_logits(base, product):
    """Logits of the product with the head, as the families' forwards in transformers write it."""
    kind = base.config.model_type
    return {"granite": product / 3.0, "cohere": product * 0.3, "gemma2": torch.tanh(product / 20.0) * 20.0}.get(
        kind, product
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("trained_head", [True, False])
def test_chunked_cross_entropy_equals_torchs(trained_head, rule, monkeypatch):
    monkeypatch.setitem(LOSS_CHUNK_FLOATS, "cpu", 20 * 50)  # chunks of 20 rows
    x, labels = torch.randn(70, 8, requires_grad=True), torch.randint(0, 50, (70,))
    w, b = torch.randn(50, 8, requires_grad=trained_head), torch.randn(50, requires_grad=trained_head)
    total, hits = hard_loss(x, Head(w, b, rule), labels)
    logits = Head(w, b, rule)(x)
    expected = F.cross_entropy(logits, labels, reduction="sum")
    assert torch.allclose(total, expected, rtol=1e-5)
    assert torch.equal(hits, logits.argmax(-1) == labels)
    wrt = (x, w, b) if trained_head else (x,)
    for a, b in zip(torch.autograd.grad(3 * total, wrt), torch.autograd.grad(3 * expected, wrt), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", ["ce", "kl", "reverse_kl", "tv"])
def test_chunked_distances_equal_their_definitions(kind, rule, monkeypatch):
    monkeypatch.setitem(LOSS_CHUNK_FLOATS, "cpu", 16 * 50)
    x, target = torch.randn(37, 8, requires_grad=True), torch.randn(37, 6)
    w, v = Head(torch.randn(50, 8, requires_grad=True), None, rule), Head(torch.randn(50, 6), torch.randn(50), rule)
    total, hits = soft_loss(x, w, target, v, kind)
    log_q, log_p = w(x).log_softmax(-1), v(target).log_softmax(-1)
    q, p = log_q.exp(), log_p.exp()
    distances = {
        "ce": -p * log_q,
        "kl": p * (log_p - log_q),
        "reverse_kl": q * (log_q - log_p),
        "tv": (p - q).abs() / 2,
    }
    expected = distances[kind].sum()
    assert torch.allclose(total, expected, rtol=1e-5)
    assert torch.equal(hits, q.argmax(-1) == p.argmax(-1))
    wrt = (x, w.weight)
    for a, b in zip(torch.autograd.grad(total, wrt), torch.autograd.grad(expected, wrt), strict=True):
        assert torch.allclose(a, b, atol=1e-4)


class Largest(TorchDispatchMode):
    """Records the size of the largest tensor that any operation returns."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.size = max([self.size, *(t.numel() for t in tree_leaves(result) if isinstance(t, torch.Tensor))])
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_never_whole(dtype, monkeypatch):
    """The largest tensor is one chunk, whatever the number of rows."""
    monkeypatch.setitem(LOSS_CHUNK_FLOATS, "cpu", 1 << 12)
    x, target = torch.randn(500, 4, requires_grad=True), torch.randn(500, 4)
    weight, other = (Head(torch.randn(64, 4).to(dtype), torch.randn(64).to(dtype), LogitRule(0.3)) for _ in range(2))
    with Largest() as largest:
        hard_loss(x, weight, torch.zeros(500, dtype=torch.long))[0].backward()
        for kind in DISTANCES:
            soft_loss(x, weight, target, other, kind)[0].backward()
        rows, weights = [torch.arange(250), torch.arange(250)], torch.ones(500)
        unrolled_loss(x, weight, target, other, rows, torch.ones(2), "tv", weights)[0].backward()
        label_losses(x, weight, torch.zeros(500, dtype=torch.long))
    assert largest.size == 1 << 12


@pytest.mark.parametrize("block", [1, 50, 3 * 50])
def test_blocks_change_nothing(block, monkeypatch):
    x, w = torch.randn(37, 8, requires_grad=True), torch.randn(50, 8)
    labels = torch.randint(0, 50, (37,))
    expected = F.cross_entropy(x @ w.T, labels, reduction="sum")
    monkeypatch.setattr("training.losses.BLOCK_FLOATS", block)
    assert torch.allclose(hard_loss(x, Head(w), labels)[0], expected)


def test_the_medusa_offsets_of_the_docstring():
    ids = torch.arange(100, 107)[None]
    mask = torch.tensor([[False] * 3 + [True] * 4])
    labels = medusa_labels(ids, mask, 3)[0]
    assert labels[2].tolist() == [104, 105, 106]
    assert labels[3].tolist() == [105, 106, -100]
    assert labels[4].tolist() == [106, -100, -100]
    assert (labels[[0, 1, 5, 6]] == -100).all()


def test_no_label_reaches_over_a_gap_between_answers():
    mask = torch.tensor([[False, True, True, True, False, False, True, True, True]])
    labels = medusa_labels(torch.arange(9)[None], mask, 4)[0]
    assert labels[0].tolist() == [2, 3, -100, -100] and labels[1].tolist() == [3, -100, -100, -100]
    assert labels[5].tolist() == [7, 8, -100, -100]
    assert (labels[[2, 3, 4, 7, 8]] == -100).all()


@pytest.mark.parametrize(("family", "tied"), [*((name, True) for name in FAMILIES), ("llama", False), ("phi", False)])
def test_the_medusa_loss_equals_the_literal_one(family, base_of, batch, tied):
    base = base_of(family)
    config = train_config(medusa_num_heads=3, medusa_num_layers=2, medusa_tie_lm_head=tied)
    method = perturbed(MedusaMethod(config, base))
    features = method.features(batch)
    hidden, _ = base.forward_hidden(batch.input_ids)
    loss_sums, counts = [torch.zeros(()) for _ in range(3)], [0, 0, 0]
    for b in range(3):
        for t in range(batch.input_ids.shape[1]):
            for i in range(3):
                if in_answer(batch.mask, b, *range(t + 1, t + 3 + i)):
                    linear = method.draft.output(i)
                    z = F.linear(method.draft.blocks[i](hidden[b, t]), linear.weight, linear.bias)
                    logits = family_logits(base, z)
                    loss_sums[i] = loss_sums[i] + F.cross_entropy(logits, batch.input_ids[b, t + 2 + i])
                    counts[i] += 1
    check_losses(method, features, loss_sums)
    assert method.counts(features).tolist() == counts
    assert method.weights == pytest.approx([0.2, 0.16, 0.128])


def test_medusa_labels_outside_the_draft_vocabulary_are_misses_not_losses(base, batch, conversations):
    full = MedusaMethod(train_config(medusa_num_heads=2), base)
    reduced = MedusaMethod(train_config(medusa_num_heads=2, draft_vocab_size=20), base, None, conversations)
    all_features, features = full.features(batch), reduced.features(batch)
    assert torch.equal(features["valid"], all_features["valid"])
    in_vocabulary = torch.isin(all_features["columns"], reduced.draft.draft_ids) & features["valid"]
    assert torch.equal(features["columns"] >= 0, in_vocabulary) and not bool(in_vocabulary.all())
    outcome = reduced(features)
    assert not (outcome.hits & ~in_vocabulary).any() and torch.equal(reduced.counts(features), in_vocabulary.sum(0))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_eagle_loss_equals_the_literal_one(family, base_of, batch):
    base = base_of(family)
    method = perturbed(EagleMethod(train_config(method="eagle", eagle_num_layers=2), base))
    features = method.features(batch)
    hidden, _ = base.forward_hidden(batch.input_ids)
    p_logits = base.model(batch.input_ids).logits
    smooth, soft, count = torch.zeros(()), torch.zeros(()), 0
    for b in range(3):
        n = int(batch.lengths[b])
        g = method.draft(hidden[b : b + 1, : n - 1], batch.input_ids[b : b + 1, 1:n], torch.arange(n - 1)[None])[0]
        for t in range(n - 2):
            if in_answer(batch.mask, b, t + 1, t + 2):
                d = (g[t] - hidden[b, t + 1]).abs()
                smooth = smooth + torch.where(d < 1, 0.5 * d * d, d - 0.5).mean()
                soft = soft + cross_entropy(family_logits(base, base.lm_head(g[t])), p_logits[b, t + 1])
                count += 1
    check_losses(method, features, [smooth, soft])
    assert method.counts(features).tolist() == [count, count] and method.weights == [1.0, 0.1]


def test_eagle_noise_is_bounded_and_repeats(base, batch):
    method = EagleMethod(train_config(method="eagle", eagle_noise=0.1), base)
    noise = method._noise(torch.zeros(3, 9, 32), torch.tensor([512, 1024, 2048]), seed=5)
    assert noise.abs().amax((1, 2)).tolist() == pytest.approx([0.1, 0.05, 0.025], rel=0.05)
    features = method.features(batch)
    method.train()
    assert torch.equal(method(features, 5).loss_sums, method(features, 5).loss_sums)
    assert not torch.equal(method(features, 5).loss_sums, method(features, 6).loss_sums)


@pytest.mark.parametrize(
    ("kind", "config"),
    [(EagleMethod, train_config("eagle")), (Eagle3Method, train_config("eagle3", ttt_steps=7))],
)
def test_a_batch_may_be_shorter_than_the_unrolled_steps(base, kind, config):
    method, tokens = kind(config, base), torch.tensor([5, 6, 7], dtype=torch.int32)
    features = method.features(collate([TokenizedConversation("short", tokens, torch.ones(3, dtype=bool), "")]))
    method(features).loss.backward()
    assert method.drafted(features).valid.sum(0)[0] == 1


@pytest.mark.parametrize(
    ("family", "vocabulary", "answers", "norms"),
    [
        *((name, "all", 1, ()) for name in FAMILIES),
        ("llama", "some", 2, ("fc_norm", "norm_output")),
        ("phi", "some", 1, ("norm_before_fc",)),
    ],
)
def test_the_eagle3_loss_equals_the_literal_one(family, base_of, batch, vocabulary, answers, norms):
    base = base_of(family)
    config = train_config(method="eagle3", ttt_steps=3)
    ids = None if vocabulary == "all" else torch.arange(0, base.vocab_size, 2)
    if answers == 2:  # a user's turn between two answers, elsewhere in every row
        batch = replace(batch, mask=batch.mask.clone())
        for row, tokens in enumerate(batch.mask):
            start = int(tokens.int().argmax()) + 4 + row
            batch.mask[row, start : start + 3] = False
    method = perturbed(Eagle3Method(config, base, Eagle3Draft.from_base(base, ids, **dict.fromkeys(norms, True))))
    features = method.features(batch)
    hidden, aux = base.forward_hidden(batch.input_ids, layers=method.draft.layers_wanted)
    theirs = base.model(batch.input_ids).logits
    loss_sums, counts = [torch.zeros(()) for _ in range(3)], [0, 0, 0]
    for b in range(3):
        n = int(batch.lengths[b])
        for t in range(n - 2):
            # a chain drafted from t, as the engine would: prefill of 0…t, then its own features one by one
            fused = method.draft.fuse(hidden, aux)[b : b + 1, : t + 1]
            states = fused
            for j in range(3):
                if not in_answer(batch.mask, b, *range(t + 1, t + 3 + j)):
                    break
                tokens = torch.cat([batch.input_ids[b, 1 : t + 2], batch.input_ids[b, t + 2 : t + 2 + j]])[None]
                out = method.draft(states, tokens, torch.arange(t + 1 + j)[None])
                p_logits = theirs[b, t + 1 + j]
                if bool(method.draft.t2d[p_logits.argmax()]):
                    q_logits = method.draft.logits(out[0, -1])
                    loss_sums[j] = loss_sums[j] + cross_entropy(q_logits, p_logits[method.draft.draft_ids])
                    counts[j] += 1
                states = torch.cat([states, out[:, -1:]], 1)
    check_losses(method, features, loss_sums)
    assert method.counts(features).tolist() == counts
    assert method.weights == pytest.approx([1.0, 0.8, 0.64])
    assert vocabulary == "all" or counts[0] < len(features["row"])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_left_to_the_base_changes_no_loss_and_takes_no_gradient(family, base_of, batch):
    base = base_of(family)
    config = train_config(method="eagle3")
    torch.manual_seed(0)
    trained = Eagle3Method(config, base)
    torch.manual_seed(0)
    frozen = Eagle3Method(config.model_copy(update={"train_lm_head": False}), base)
    features = trained.features(batch)
    for method in (trained, frozen):
        method(features, scale=torch.tensor(method.weights)).loss.backward()
    assert torch.equal(trained(features).loss_sums, frozen(features).loss_sums)
    assert trained.draft.lm_head.weight.grad is not None and frozen.draft.lm_head.weight.grad is None
    assert torch.equal(trained.draft.fc.weight.grad, frozen.draft.fc.weight.grad)


def test_positions_of_rows_make_a_table():
    row, position = torch.tensor([0, 0, 2]), torch.tensor([3, 4, 7])
    table, column = pad_positions_by_row(row, position, 3)
    assert table.tolist() == [[3, 4], [0, 0], [7, 0]] and column.tolist() == [0, 1, 0]


def test_a_chunked_gradient_is_taken_once():
    x = torch.randn(5, 4, requires_grad=True)
    total, _ = hard_loss(x, Head(torch.randn(6, 4)), torch.zeros(5, dtype=torch.long))
    total.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        total.backward()


@pytest.mark.parametrize(
    ("family", "kind"),
    [*((name, "kl") for name in FAMILIES), ("llama", "ce"), ("llama", "reverse_kl"), ("llama", "tv")],
)
def test_the_standalone_loss_equals_the_literal_one(family, base_of, batch, kind):
    base = base_of(family)
    method = perturbed(StandaloneMethod(train_config(method="draft", draft_num_layers=2, draft_loss=kind), base))
    features = method.features(batch)
    total = torch.zeros(())
    for b in range(3):
        n = int(batch.lengths[b])
        log_q = method.draft(batch.input_ids[b : b + 1, :n]).logits[0].log_softmax(-1)
        log_p = base.model(batch.input_ids[b : b + 1, :n]).logits[0].log_softmax(-1)
        for s in range(n - 1):
            if batch.mask[b, s + 1]:
                q, p = log_q[s].exp(), log_p[s].exp()
                total = (
                    total
                    + {
                        "ce": -log_q[s, batch.input_ids[b, s + 1]],
                        "kl": (p * (log_p[s] - log_q[s])).sum(),
                        "reverse_kl": (q * (log_q[s] - log_p[s])).sum(),
                        "tv": (p - q).abs().sum() / 2,
                    }[kind]
                )
    check_losses(method, features, [total])
    assert method.counts(features).tolist() == [int(batch.mask.sum())]


@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "peagle", "dflash", "draft"])
def test_padding_and_other_rows_change_no_loss(base, conversations, name):
    """Rows alone or together in a padded batch give the same sums."""
    config = train_config(method=name, draft_num_layers=2, down_sample_ratio=1.0)
    method = perturbed(make_method(config, base, conversations))
    together = method(method.features(collate(conversations[:3]))).loss_sums
    alone = sum(method(method.features(collate([c]))).loss_sums for c in conversations[:3])
    assert torch.allclose(together, alone, rtol=1e-5)
