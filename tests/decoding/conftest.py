"""Tiny random bases of every family, and helpers to decode with them and with transformers."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from decoding.accept import accept_lossless, child_table
from decoding.config import GenerateConfig
from decoding.generate import generate
from decoding.step import Step
from decoding.target import Target
from decoding.tree import TreeShape
from models.base import LoadedBase, load_base
from tests.tiny import FAMILIES, make_tiny_base

PROMPTS = ("the quick brown fox", "1 2 3 + 1 2 3 +", "a model guesses 🦊 tokens")


@pytest.fixture(scope="session")
def base_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., LoadedBase]:
    """base_of(family, seed=0): a loaded tiny base, created once per session."""
    bases: dict[tuple[str, int], LoadedBase] = {}

    def get(family: str, seed: int = 0) -> LoadedBase:
        if (family, seed) not in bases:
            kind, overrides = FAMILIES[family]
            folder: Path = tmp_path_factory.mktemp(f"{family}-{seed}")
            bases[family, seed] = load_base(make_tiny_base(folder, kind, seed, num_hidden_layers=2, **overrides))
        return bases[family, seed]

    return get


@pytest.fixture(scope="session")
def base(base_of: Callable[..., LoadedBase]) -> LoadedBase:
    return base_of("llama")


def ids_of(base: LoadedBase, text: str) -> list[int]:
    return base.tokenizer(text)["input_ids"]


def greedy(base: LoadedBase, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
    """transformers' own greedy tokens, and the smallest gap between the two best logits of a step."""
    out = base.model.generate(
        torch.tensor([prompt]),
        max_new_tokens=count,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    gaps = [float(best[0] - second) for best, second in (row[0].topk(2).values.tensor_split(2) for row in out.logits)]
    return out.sequences[0, len(prompt) :].tolist(), min(gaps)


def run(target: Target, drafter: object, prompt: Sequence[int], **config: object) -> list[Step]:
    """All steps of a generation. Only its length ends it unless `eos_ids` is given."""
    config.setdefault("eos_ids", frozenset())
    return list(generate(target, drafter, prompt, GenerateConfig(**config)))


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token.id for step in steps for token in step.tokens]


def walk_trees(
    shape: TreeShape,
    tokens: torch.Tensor,
    probs_after: Callable[[torch.Tensor], torch.Tensor],
    proposals: dict[int, torch.Tensor],
    uniforms: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`accept_lossless` for B trees [B, n] of one shape, with `proposals` [B, V] by parent."""
    number = torch.zeros(len(shape), dtype=torch.long)
    number[list(proposals)] = torch.arange(len(proposals))
    rows = torch.stack(list(proposals.values())) if proposals else None
    proposals_after = (lambda nodes: rows[number[nodes], torch.arange(len(nodes))]) if proposals else None
    children = torch.tensor(child_table(shape, shape.width))
    return accept_lossless(children, shape.max_depth, tokens, probs_after, proposals_after, uniforms)
