"""Acceptance measured without generating equals the engine's; drafts that learned the text reach the upper bound."""

from functools import cache

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.generate import GenerateConfig, generate
from decoding.stats import summarize
from decoding.target import Target
from models.base import load_base
from models.checkpoints import load_draft, save_draft
from models.methods import train_config
from tests.tiny import GRANITE, make_tiny_base
from tests.training.conftest import answer
from training.acceptance import Acceptance, measure_acceptance, simulate_steps
from training.batches import collate
from training.convert import conversations_from
from training.method import NO_RANK, make_method, outcome_of_ranks
from training.samples import copy_as_loaded, sample

DEPTHS = {"medusa": 3, "eagle": 3, "eagle3": 3, "peagle": 3, "dflash": 3, "draft": 4}


def test_the_walk_of_the_docstring():
    assert simulate_steps([2, 0, 0, 0, 1], [(0, t) for t in range(2, 7)]) == (2, 4)


def test_walking_starts_anew_at_each_answer():
    positions = [(0, 2), (0, 3), (0, 9), (0, 10), (1, 2)]
    assert simulate_steps([1, 0, 0, 0, 0], positions) == (4, 5)


def test_expected_tree_length_counts_each_node_once():
    """Ranks of two depths at four positions: (0, 0), (0, 1), (1, miss), (miss, 0)."""
    ranks = torch.tensor([[0, 0], [0, 1], [1, NO_RANK], [NO_RANK, 0]])
    total = Acceptance()
    outcome = outcome_of_ranks(ranks, torch.ones_like(ranks, dtype=torch.bool))
    total.add(outcome, torch.zeros(4, dtype=torch.long), torch.arange(4))
    assert total.tree_tau(2) == 1 + 2 / 4
    assert total.tree_tau(3) == 1 + 3 / 4
    assert total.tree_tau(5) == 1 + 2 / 4 + 1 / 4 + 1 / 4 + 1 / 4
    assert total.top1() == [0.5, 0.5]


@pytest.fixture(scope="module")
def base(tiny_base):
    """The tiny base with sharper probabilities: no two tokens nearly tie, so a draft can learn them exactly."""
    base = load_base(tiny_base)
    base.final_norm.weight.data *= 2
    return base


@pytest.fixture(scope="module")
def answers(base):
    return answers_of(base)


def answers_of(base):
    """Two answers of 25 tokens, none ended early: a small batch to learn by heart."""
    return conversations_from([answer(base, f"say {i} fox", 25) for i in range(2)], base, 256)


UNTIED = {"tie_word_embeddings": False}
SHARP = {
    "phi": ({}, 2.0),
    "granite": (GRANITE, 6.0),
    "gemma2": ({"head_dim": 8, "final_logit_softcapping": 16.0, **UNTIED}, 2.0),
    "cohere": ({"logit_scale": 0.4, **UNTIED}, 6.0),
}
"""Tiny bases with an untied head, which do not repeat one token for ever, and what their last norm is set to."""


@pytest.fixture(scope="module")
def special_base_of(tmp_path_factory):
    """A base whose logits are not the plain product with its head, and its answers, by family."""
    return cache(lambda kind: make_special_base(kind, tmp_path_factory))


def make_special_base(kind, tmp_path_factory):
    overrides, size = SHARP[kind]
    base = load_base(make_tiny_base(tmp_path_factory.mktemp(kind), kind, 2, num_hidden_layers=2, **overrides))
    base.final_norm.weight.data.fill_(size)  # Gemma adds 1 to it
    answers = answers_of(base)
    assert all(len(set(c.token_ids[c.mask].tolist())) > 5 for c in answers)
    return base, answers


def learn(method, features, steps=450, lr=5e-3):
    """Train with full-batch Adam until the answers are known by heart; return the loss by term."""
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=lr, fused=True)
    counts = method.counts(features).clamp(min=1)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - step / steps)
        method(features, scale=1 / counts).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return method.eval()(features).loss_sums / counts


def floor(method, base, features, conversations):
    """The lower bound of the loss: the entropy of the base's distribution where labels are soft, else 0."""
    if method.draft.method in ("medusa", "dflash", "draft"):
        return torch.zeros(1)  # hard labels, and KL is a distance
    logs = base.model(collate(conversations).input_ids).logits.log_softmax(-1)
    entropy = -(logs.exp() * logs).sum(-1)
    row, position = features["row"], features["position"]
    if method.draft.method == "eagle":
        return torch.stack([torch.zeros(()), entropy[row, position + 1].mean()])
    if method.draft.method == "peagle":
        counted = features["labels"][row, position] >= 0
        return torch.cat([entropy[row[at], position[at] + 1 + d] for d, at in enumerate(counted.T)]).mean()
    steps = []
    for j in range(method.steps):
        counted, at = method._targets(features, j)
        steps.append(entropy[row[counted], at].mean())
    return torch.stack(steps)


@pytest.mark.parametrize("name", ["medusa", "eagle", "eagle3", "peagle", "dflash", "draft"])
def test_a_draft_that_knows_the_answers_drafts_them_in_the_engine(name, base, answers):
    """Overfit: loss within 0.05 of its floor, τ ≥ 0.95·(depth + 1) in the engine, equal to what training measured."""
    torch.manual_seed(0)
    settings = {"medusa_num_heads": 3, "ttt_steps": 3, "draft_num_layers": 2, "eagle_noise": 0.0, "draft_loss": "kl"}
    settings |= {"num_depths": 3, "down_sample_ratio": 1.0}
    settings |= {"block_size": 4, "dflash_num_layers": 1}
    method = make_method(train_config(method=name, **settings), base, answers)
    features = method.features(collate(answers))
    loss = learn(method, features, 900 if name == "dflash" else 450)  # its frozen head makes it learn slowly
    assert (loss - floor(method, base, features, answers) < 0.05).all()
    depth = DEPTHS[name]
    assert measure_acceptance(method, [features]).tau >= 0.95 * (depth + 1)
    assert engine_tau(base, method.draft, answers, depth) >= 0.95 * (depth + 1)


def engine_tau(base, draft, conversations, depth):
    """τ of chains in the engine, which generates the conversations again."""
    steps = []
    for conversation in conversations:
        start = int(conversation.mask.nonzero()[0])
        target = Target(base, 256)
        drafter = make_drafter(target, copy_as_loaded(base, draft), {"tree": [[0] * d for d in range(1, depth + 1)]})
        steps += generate(target, drafter, conversation.token_ids[:start].tolist(), GenerateConfig(max_tokens=25))
    emitted = [t.id for s in steps for t in s.tokens]
    assert emitted == [int(i) for c in conversations for i in c.token_ids[c.mask]]
    return summarize(steps).mean_accepted_length


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("medusa", "phi"),
        ("medusa-tied", "gemma2"),
        ("eagle", "cohere"),
        ("eagle3", "granite"),
        ("dflash", "granite"),
        ("draft", "gemma2"),
    ],
)
def test_every_method_learns_the_answers_of_a_base_with_a_special_head(name, family, special_base_of, tmp_path):
    """The loss reaches the base's entropy; chains of two are nearly always accepted, also after saving and loading."""
    base, answers = special_base_of(family)
    torch.manual_seed(0)
    settings = {"medusa_num_heads": 2, "ttt_steps": 2, "draft_num_layers": 2, "eagle_noise": 0.0}
    settings |= {"block_size": 3}
    tied = {"medusa_tie_lm_head": True, "medusa_num_layers": 2} if name == "medusa-tied" else {}
    method = make_method(train_config(method=name.removesuffix("-tied"), **settings, **tied), base, answers)
    features = method.features(collate(answers))
    steps = 250 if name == "dflash" else 100  # its head is frozen
    excess = learn(method, features, steps, lr=1e-2) - floor(method, base, features, answers)
    limit = 1.0 if name.startswith(("medusa", "dflash")) else 0.1  # capped logits cannot favour one token strongly
    assert (excess.abs() < limit).all()
    draft = load_draft(save_draft(tmp_path / "draft", method.draft, {}), base)
    assert engine_tau(base, draft, answers, 2) > 2.5


def test_what_training_measures_is_what_the_engine_does(base, answers):
    """A half-trained draft: the walk over the data gives the engine's own steps, answer by answer."""
    torch.manual_seed(0)
    method = make_method(train_config(method="eagle3", ttt_steps=3), base, answers)
    learn(method, method.features(collate(answers)), steps=60)
    for conversation in answers:
        measured = measure_acceptance(method, [method.features(collate([conversation]))])
        start = int(conversation.mask.nonzero()[0])
        target = Target(base, 256)
        drafter = make_drafter(target, copy_as_loaded(base, method.draft), {"tree": [[0], [0, 0], [0, 0, 0]]})
        config = GenerateConfig(max_tokens=len(conversation) - start)
        steps = [s for s in generate(target, drafter, conversation.token_ids[:start].tolist(), config) if s.counted]
        accepted = [len(s.tokens) for s in steps]
        assert (measured.steps, measured.emitted) == (len(accepted), sum(accepted))


def test_samples_show_where_tokens_came_from(base, answers):
    method = make_method(train_config(method="eagle3"), base, answers)
    record = sample(base, method.draft, answers[0])
    assert record["text"] == "".join(t["text"] for t in record["tokens"])
    assert {t["origin"] for t in record["tokens"]} <= {"draft", "target"}
    assert record["mean_accepted_length"] >= 1 and "fox" in record["prompt"]
