"""Sampling with the networks of all drafters keeps the base's distribution: the statistical test of test_lossless.py on
whole generations."""

import pytest
import torch

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.sampling import LogitsWarper
from decoding.target import Target
from models.methods import METHODS
from tests.decoding.conftest import ids_of
from tests.decoding.test_lossless import ALARM, p_value

RUNS, TOP_K, TOKENS = 400, 3, 3
TREE = [[0, 0], [0, 1], [1]]
OPTIONS = {"peagle": {"num_depths": 3, "mask_token_id": 7}, "dflash": {"block_size": 4}}
METHODS_TESTED = ("eagle3", "peagle", "dflash")
TEMPERATURES = (0.7, 1.0)
TESTS = len(METHODS_TESTED) * len(TEMPERATURES)


@torch.no_grad()
def exact(base, prompt, temperature) -> dict[tuple[int, ...], float]:
    """{tokens: probability} of all continuations of the prompt."""
    warp, texts = LogitsWarper(temperature, TOP_K), {(): 1.0}
    for _ in range(TOKENS):
        rows = torch.tensor([[*prompt, *tokens] for tokens in texts])
        probs = warp(base.model(rows).logits[:, -1])
        texts = {
            (*tokens, token): before * float(row[token])
            for (tokens, before), row in zip(texts.items(), probs, strict=True)
            for token in row.nonzero()[:, 0].tolist()
        }
    return texts


def check_distribution(target, drafter, prompt, temperature, alarm) -> None:
    """Whole generations with the drafter have the distribution of the base's continuations; `alarm`: probability of a
    failure by chance."""
    expected = exact(target.base, prompt, temperature)
    config = {"max_tokens": TOKENS, "temperature": temperature, "top_k": TOP_K, "eos_ids": frozenset()}
    counts, accepted = dict.fromkeys(expected, 0), 0
    for seed in range(RUNS):
        steps = list(generate(target, drafter, prompt, GenerateConfig(seed=seed, **config)))
        counts[tuple(token.id for step in steps for token in step.tokens)] += 1
        accepted += len(steps) < TOKENS
    assert 0.1 * RUNS < accepted < 0.9 * RUNS, "both acceptance and rejection must occur"
    observed, probs = torch.tensor(list(counts.values())), torch.tensor(list(expected.values()), dtype=torch.float64)
    assert p_value(observed, probs) > alarm


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("method", METHODS_TESTED)
def test_sampled_trees_keep_the_bases_distribution(method, temperature, base):
    prompt = ids_of(base, "the quick brown fox")
    torch.manual_seed(4)
    tokens = {tokens[1] for tokens in exact(base, prompt, temperature)}
    vocabulary = torch.tensor(sorted(tokens))  # so that some are accepted
    draft = METHODS[method].load("network").from_base(base, vocabulary, **OPTIONS.get(method, {})).eval()
    target = Target(base, 64)
    drafter = make_drafter(target, draft, {"tree": TREE, "sample": True})
    check_distribution(target, drafter, prompt, temperature, ALARM / TESTS)
