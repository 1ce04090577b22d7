"""Imported drafts of every layout compute the logits of references written from the other projects' forward passes, in
the plain module and in the fast runner, and do not change the generated tokens."""

from functools import cache
from typing import Any

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.drafters.runners import PackedRunner
from decoding.target import fast_target
from formats.imports.eagle import MODELOPT_TWICE
from formats.options import export_options as formats_of
from models.base import load_base
from models.checkpoints import load_draft, verify_sums
from tests.decoding.conftest import run, tokens_of
from tests.formats.imports import references, writers
from tests.formats.imports.writers import HIDDEN, LINEAR, LLAMA3, VOCABULARY, YARN

POSITIONS, PROMPT = 9, list(range(20, 50))
LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
NEAR = {"rtol": 0.0, "atol": 1e-4}
OTHER_HEADS = {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 48}
DRAFT_IDS = torch.arange(3, VOCABULARY, 2)
SHUFFLED = DRAFT_IDS[torch.randperm(len(DRAFT_IDS), generator=torch.Generator().manual_seed(0))]
"""ModelOpt lists its draft vocabulary by frequency."""
TABLE = writers.Random(9).matrix(VOCABULARY, HIDDEN) * 5
NARROW = writers.Random(8).matrix(VOCABULARY, 16) * 5
EAGLE: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("model.safetensors", {}),
    "pickled": ("pytorch_model.bin", {}),
    "fc bias": ("pytorch_model.bin", {"fc_bias": True}),
    "two layers, qkv bias": ("model.safetensors", {"layers": 2, "biases": "qkv"}),
    "all biases": ("model.safetensors", {"biases": "qkv o mlp"}),
    "own embeddings": ("model.safetensors", {"table": TABLE}),
    "linear rope": ("model.safetensors", {"config": {"rope_scaling": LINEAR}}),
    "llama3 rope": ("model.safetensors", {"config": {"rope_scaling": LLAMA3, "rope_theta": 500.0}}),
    "yarn": ("model.safetensors", {"config": {"rope_scaling": YARN}}),
    "other heads": ("model.safetensors", {"config": OTHER_HEADS}),
}
EAGLE3: dict[str, tuple[str, dict[str, Any]]] = {
    "repository": ("pytorch_model.bin", {"draft_ids": DRAFT_IDS, "marked": True}),
    "all tokens": ("model.safetensors", {}),
    "modelopt": ("model.safetensors", {"first": "layers.0.", "draft_ids": SHUFFLED}),
    "norm before residual": ("model.safetensors", {"config": {"norm_before_residual": True}, "draft_ids": DRAFT_IDS}),
    "each normed": ("model.safetensors", {"each": True, "config": {"fc_norm": True, "norm_output": True}}),
    "together normed": ("model.safetensors", {"joined": True, "config": {"norm_before_fc": True}}),
    "biases": ("model.safetensors", {"biases": "qkv o mlp", "fc_bias": True}),
    "query norms": ("model.safetensors", {"qk": True}),
    "two layers": ("model.safetensors", {"layers": 2}),
    "own embeddings": ("model.safetensors", {"table": TABLE, "draft_ids": DRAFT_IDS}),
    "narrower": (
        "model.safetensors",
        {
            **{"table": NARROW, "target": HIDDEN},
            "config": {"hidden_size": 16, "target_hidden_size": HIDDEN, "intermediate_size": 40},
        },
    ),
    "other heads": ("model.safetensors", {"config": OTHER_HEADS, "draft_ids": DRAFT_IDS}),
    "llama3 rope": ("model.safetensors", {"config": {"rope_scaling": LLAMA3, "rope_theta": 500.0}}),
    "yarn": ("model.safetensors", {"config": {"rope_scaling": YARN}}),
    "two fused": ("model.safetensors", {"fused": 2, "config": {"eagle_config": {LAYER_IDS: [0, 2]}}}),
}


def drafted_twice(draft: Any, hidden: torch.Tensor, aux: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Logits [2, V'] of a reference or a network: after the text, and after one more token read with its own output."""
    features = draft.fuse(hidden, aux)
    out = draft.hidden(features, ids[:-1])
    again = draft.hidden(torch.cat([features, out[-1:]]), ids)
    return torch.stack([draft.logits(out[-1]), draft.logits(again[-1])])


class Network:
    """Our module with the interface of a reference."""

    def __init__(self, draft: Any):
        self.draft, self.logits = draft, draft.logits

    def fuse(self, hidden: torch.Tensor, aux: torch.Tensor) -> torch.Tensor:
        return self.draft.fuse(hidden[None], aux[None].chunk(max(len(self.draft.layers_wanted), 1), -1))[0]

    def hidden(self, features: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return self.draft(features[None], ids[None], torch.arange(len(ids))[None])[0]


def runner_twice(runner: PackedRunner, hidden: torch.Tensor, aux: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """The logits of `drafted_twice` from the fast runner, the second step with its cache."""
    cache = runner.new_cache()
    out = runner(runner.fuse(hidden, aux), ids[:-1], torch.arange(len(ids) - 1), cache)[-1:]
    again = runner(out, ids[-1:], torch.tensor([len(ids) - 1]), cache)
    return torch.cat([runner.logits(out), runner.logits(again)])


def inputs(base: Any, fused: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = writers.Random(7)
    ids = torch.randint(0, base.vocab_size, (POSITIONS + 1,), generator=random.generator)
    return random.matrix(POSITIONS, base.hidden_size) * 5, random.matrix(POSITIONS, fused * base.hidden_size) * 5, ids


@torch.no_grad()
def check_eagle(
    kind: str, file: str, published: Any, options: dict, base: Any, tiny_base: Any, imported: Any, layout: str = ""
) -> dict:
    """Check that module and runner equal the reference, and that the engine generates the tokens of the base."""
    folder, report = imported(published, file, layout)
    verify_sums(folder)
    reference = getattr(references, kind)(*published, base.embed_tokens.weight, base.lm_head.weight)
    arguments = inputs(base, options.get("fused", 3))
    expected = drafted_twice(reference, *arguments)
    draft = load_draft(folder, base)
    torch.testing.assert_close(drafted_twice(Network(draft), *arguments), expected, **NEAR)
    fast_base = load_base(tiny_base)
    packed = load_draft(folder, fast_base)
    torch.testing.assert_close(runner_twice(PackedRunner(packed, torch.float32), *arguments), expected, **NEAR)
    check_engine(folder, tiny_base)
    return report


@cache
def plain_text(tiny_base: Any) -> list[int]:
    target = fast_target(load_base(tiny_base), 200)
    return tokens_of(run(target, make_drafter(target), PROMPT, max_tokens=16))


def check_engine(folder: Any, tiny_base: Any) -> None:
    base = load_base(tiny_base)
    target = fast_target(base, 200)
    steps = run(target, make_drafter(target, load_draft(folder, base)), PROMPT, max_tokens=16)
    assert tokens_of(steps) == plain_text(tiny_base)
    assert any(s.draft_record and len(s.draft_record.tokens) > 1 for s in steps)


@pytest.mark.parametrize("name", EAGLE)
def test_eagle_1(name, base, tiny_base, imported):
    file, options = EAGLE[name]
    published = writers.eagle(**options)
    report = check_eagle("Eagle", file, published, options, base, tiny_base, imported)
    assert (report["format"], report["method"]) == ("eagle", "eagle")


@pytest.mark.parametrize("name", EAGLE3)
def test_eagle_3(name, base, tiny_base, imported):
    file, options = EAGLE3[name]
    published = writers.eagle3(**options)
    report = check_eagle("Eagle3", file, published, options, base, tiny_base, imported)
    assert report["format"] == ("modelopt-eagle3" if name == "modelopt" else "eagle3")


def test_features_normed_twice_as_modelopt_trains_them(base, tiny_base, imported):
    """ModelOpt's module does so since 0.41 and no server does: an import does so on request, and no format takes it."""
    options = {"first": "layers.0.", "draft_ids": SHUFFLED, "config": {"eagle_config": {LAYER_IDS: [0, 2, 3]}}}
    published = writers.eagle3(**options)
    check_eagle("Eagle3Twice", "model.safetensors", published, options, base, tiny_base, imported, MODELOPT_TWICE)
    folder, _ = imported(published, layout=MODELOPT_TWICE)
    reasons = {option.name: option.reason for option in formats_of(folder, tiny_base)}
    assert "norm_features_twice" in reasons["vllm"] and "norm_features_twice" in reasons["modelopt"]
    folder, _ = imported(published, layout="modelopt-eagle3")
    assert not load_draft(folder, base).config.norm_features_twice


@pytest.mark.parametrize(
    "options",
    [
        {"draft_ids": DRAFT_IDS, "marked": True},
        {"draft_ids": DRAFT_IDS, "marked": True, "each": True, "top": {"norm_output": True}},
        {"draft_ids": DRAFT_IDS, "marked": True, "joined": True, "layers": 2},
    ],
    ids=["plain", "3.1", "norm before fc"],
)
def test_speculators(options, base, tiny_base, imported):
    published = writers.speculators(**options)
    report = check_eagle("Eagle3", "model.safetensors", published, options, base, tiny_base, imported)
    assert report["format"] == "speculators"


@pytest.mark.parametrize(
    ("options", "depths"),
    [({"draft_ids": DRAFT_IDS, "marked": True}, 4), ({"layers": 2, "joined": True, "table": TABLE, "depths": None}, 8)],
    ids=["plain", "two layers, own embeddings"],
)
@torch.no_grad()
def test_peagle(options, depths, base, tiny_base, imported):
    """Masked positions read the mask's features and token."""
    published = writers.peagle(**options)
    report = check_eagle("Eagle3", "model.safetensors", published, options, base, tiny_base, imported)
    assert (report["format"], report["method"]) == ("peagle", "peagle")
    assert any("up to 8 tokens" in notice for notice in report["notices"]) == (depths == 8)
    check_masked(published, depths, base, imported)


def check_masked(published, depths, base, imported):
    draft = load_draft(imported(published)[0], base)
    assert draft.config.num_depths == depths
    reference = references.Eagle3(*published, base.embed_tokens.weight, base.lm_head.weight)
    hidden, aux, ids = inputs(base, 3)
    mask = published[1]["mask_hidden"].view(1, -1).expand(2, -1)
    expected = reference.hidden(reference.fuse(hidden, torch.cat([aux, mask])), torch.tensor([*ids[:-1], 9, 9]))[-3:]
    masked = torch.cat([draft.fuse(None, aux[None].chunk(3, -1)), draft.mask_feature().expand(1, 2, -1)], 1)
    tokens = torch.tensor([[*ids[:-1], draft.mask_token_id, draft.mask_token_id]])
    out = draft(masked, tokens, torch.arange(POSITIONS + 2)[None])[0, -3:]
    torch.testing.assert_close(draft.logits(out), reference.logits(expected), **NEAR)


@torch.no_grad()
def test_peagle_for_vllm(base, tiny_base, imported):
    published = writers.vllm_peagle()
    report = check_eagle("Eagle3", "model.safetensors", published, {}, base, tiny_base, imported)
    assert report["format"] == "peagle"
    check_masked(published, 8, base, imported)


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "medusa_lm_head.safetensors"])
@pytest.mark.parametrize(
    "options",
    [{}, {"layers": 2}, {"prefix": "medusa_head."}, {"matrices": False}, {"layers": 0}],
    ids=["v1", "two blocks", "prefixed", "v2", "no block"],
)
@torch.no_grad()
def test_medusa(file, options, base, tiny_base, imported):
    if options.get("layers") == 0:
        options = {**options, "prefix": "medusa_head."}  # nothing else says what the matrices are
    published = writers.medusa(**options)
    folder, report = imported(published, file)
    hidden = inputs(base, 3)[0]
    expected = references.medusa(published[1], hidden, base.lm_head.weight, options.get("prefix", ""))
    torch.testing.assert_close(load_draft(folder, base)(hidden), expected, **NEAR)
    check_engine(folder, tiny_base)
    assert (report["format"], report["method"]) == ("medusa", "medusa")


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"token_map": SHUFFLED}, {"single": True}],
    ids=["bias", "no bias", "token map", "one matrix"],
)
@torch.no_grad()
def test_medusa_for_vllm(options, base, tiny_base, imported):
    published = writers.vllm_medusa(**options)
    folder, report = imported(published)
    hidden, heads = inputs(base, 3)[0], load_draft(folder, base)
    expected = references.vllm_medusa(*published, hidden)
    torch.testing.assert_close(heads(hidden), expected[..., heads.draft_ids], **NEAR)
    assert expected.isfinite().sum() == expected[..., heads.draft_ids].numel()
    check_engine(folder, tiny_base)
    assert report["format"] == "vllm-medusa"
