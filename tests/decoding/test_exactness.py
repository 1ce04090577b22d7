"""Speculative greedy output equals transformers' own greedy output, token for token, with every drafter."""

import types
from dataclasses import replace
from functools import cache

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.stats import summarize
from decoding.target import Target, fast_target
from decoding.tree import shape_from_choices
from models.base import load_base
from models.dflash import DFlashDraft
from models.eagle import EagleDraft
from models.eagle3 import Eagle3Draft
from models.medusa import MedusaConfig, MedusaHeads
from models.peagle import PEagleDraft
from tests.decoding.conftest import FAMILIES, PROMPTS, greedy, ids_of, run, tokens_of
from tests.decoding.replay import ReplayDrafter

TREE = [[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]]
COUNT = 24
DRAFTERS = {
    "plain": ("none", {}),
    "ngram chain": ("none", {"drafter": "ngram"}),
    "ngram tree": ("none", {"drafter": "ngram", "width": 3, "depth": 4}),
    "medusa chain": ("medusa", {"tree": [[0, 0, 0]]}),
    "medusa tree": ("medusa", {"tree": TREE}),
    "eagle chain": ("eagle", {"depth": 2, "top_k": 1, "nodes": 4}),
    "eagle static tree": ("eagle", {"tree": TREE}),
    "eagle dynamic tree": ("eagle", {"depth": 3, "top_k": 3, "nodes": 10}),
    "eagle3 chain": ("eagle3", {"depth": 2, "top_k": 1, "nodes": 4}),
    "eagle3 static tree": ("eagle3", {"tree": TREE}),
    "eagle3 dynamic tree": ("eagle3", {"depth": 3, "top_k": 3, "nodes": 10}),
    "peagle chain": ("peagle", {"tree": [[0, 0, 0]]}),
    "peagle static tree": ("peagle", {"tree": TREE}),
    "peagle dynamic tree": ("peagle", {"depth": 3, "top_k": 3, "nodes": 10}),
    "dflash chain": ("dflash", {"depth": 5}),
    "dflash tree": ("dflash", {"tree": TREE}),
    "draft chain": ("draft", {"depth": 3}),
    "draft tree": ("draft", {"tree": TREE}),
}


SLOW = ("generic", "granite", "gemma2", "cohere")
"""Families without a fast forward."""
ON_FAST = (
    "plain",
    "ngram tree",
    "medusa tree",
    "eagle static tree",
    "eagle3 dynamic tree",
    "peagle static tree",
    "dflash chain",
    "dflash tree",
    "draft chain",
    "draft tree",
)


def draft_for(method, base, other):
    """A draft network of `method`. The standalone one is the base with noise, so that it is sometimes right."""
    torch.manual_seed(0)
    if method == "medusa":
        return MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 4), base)
    if method == "eagle":
        return EagleDraft.from_base(base)
    if method == "eagle3":
        return Eagle3Draft.from_base(base, draft_ids=torch.arange(0, base.vocab_size, 2))
    if method == "peagle":
        return PEagleDraft.from_base(base, draft_ids=torch.arange(0, base.vocab_size, 2))
    if method == "dflash":
        return DFlashDraft.from_base(base, block_size=6, dflash_num_layers=2).eval()
    if method == "draft":
        return types.SimpleNamespace(method="draft", as_base=lambda _base: other)
    return None


@pytest.fixture(scope="module")
def references(base_of):
    """For each family and prompt: the prompt's ids, transformers' tokens, the smallest gap between two best logits."""
    expected = {}
    for family in FAMILIES:
        base = base_of(family)
        for text in PROMPTS:
            prompt = ids_of(base, text)
            expected[family, text] = (prompt, *greedy(base, prompt, COUNT))
    return expected


def noisy(base):
    """A slightly different copy of a base: a standalone draft that is right sometimes."""
    copy = type(base.model)(base.config).eval()
    copy.load_state_dict(base.model.state_dict())
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in copy.parameters():
            weight += 0.02 * torch.randn(weight.shape, generator=generator)
    return replace(base, model=copy)


@pytest.fixture(scope="module")
def noisy_of(base_of):
    return cache(lambda family: noisy(base_of(family)))


@pytest.mark.parametrize("family", FAMILIES)
def test_tiny_models_have_no_near_ties(family, references):
    assert all(gap > 1e-5 for (name, _), (_, _, gap) in references.items() if name == family)


WITH_ALL_DRAFTERS = ("llama", "mistral")
WITH_ALL_FAMILIES = ("plain", "ngram tree", "eagle3 dynamic tree", "draft chain")
PAIRS = [(f, d) for f in FAMILIES for d in DRAFTERS if f in WITH_ALL_DRAFTERS or d in WITH_ALL_FAMILIES]


@pytest.mark.parametrize(("family", "name"), PAIRS)
def test_greedy_output_equals_transformers(family, name, base_of, noisy_of, references):
    base, (method, options) = base_of(family), DRAFTERS[name]
    target = Target(base, 160)
    drafter = make_drafter(target, draft_for(method, base, noisy_of(family)), options)
    index = [*FAMILIES].index(family) + [*DRAFTERS].index(name)  # every family and every drafter meets both prompts
    prompt, expected, _ = references[family, PROMPTS[1 + index % 2]]
    assert tokens_of(run(target, drafter, prompt, max_tokens=COUNT)) == expected
    target.cache.check_integrity()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fast_forward_gives_the_same_tokens_with_every_drafter(family, base_of, references):
    base = load_base(base_of(family).path)  # the fast forward takes the weights over
    other, (prompt, expected, _) = noisy(base), references[family, PROMPTS[0]]
    methods = ("none", "medusa", "eagle", "eagle3", "peagle", "dflash", "draft")
    drafts = {method: draft_for(method, base, other) for method in methods}
    target = fast_target(base, 160)
    assert (target.forward.name == "fast") is (family not in SLOW)
    for method, options in (DRAFTERS[name] for name in ON_FAST):
        drafter = make_drafter(target, drafts[method], options)
        assert tokens_of(run(target, drafter, prompt, max_tokens=COUNT)) == expected, (method, options)
    target.cache.check_integrity()


@pytest.mark.parametrize("shape", [4, shape_from_choices(TREE)], ids=["chain", "tree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_that_are_sometimes_right_change_nothing_but_the_number_of_steps(family, shape, base_of, references):
    base = base_of(family)
    prompt, expected, _ = references[family, PROMPTS[0]]
    recorded = [(t + 1) % base.vocab_size if i % 4 == 3 else t for i, t in enumerate(expected)]
    steps = run(Target(base, 160), ReplayDrafter(recorded, shape, base.vocab_size), prompt, max_tokens=COUNT)
    assert tokens_of(steps) == expected
    assert 1.0 < summarize(steps).mean_accepted_length < 5.0


def test_drafts_that_are_always_right_give_depth_plus_one(base, references):
    prompt, expected, _ = references["llama", PROMPTS[1]]
    steps = run(Target(base, 160), ReplayDrafter(expected, 3, base.vocab_size), prompt, max_tokens=COUNT)
    assert tokens_of(steps) == expected
    assert summarize(steps).mean_accepted_length == 4.0
    assert summarize(steps).acceptance_by_depth == (1.0, 1.0, 1.0)


def test_drafts_that_are_never_right_give_one(base, references):
    prompt, expected, _ = references["llama", PROMPTS[2]]
    wrong = [(t + 1) % base.vocab_size for t in expected]
    steps = run(Target(base, 160), ReplayDrafter(wrong, 3, base.vocab_size), prompt, max_tokens=COUNT)
    assert tokens_of(steps) == expected
    assert summarize(steps).mean_accepted_length == 1.0
    assert summarize(steps).acceptance_by_depth == (0.0,)
