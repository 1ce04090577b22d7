"""Imported DFlash drafts compute the logits of the servers' networks; other drafts are refused in one sentence."""

from typing import Any

import pytest
import torch

from decoding.drafters import make_drafter
from decoding.drafters.dflash_runners import BlockRunner, PackedBlockRunner
from decoding.target import fast_target
from formats.dflash_readers import BlockDraft
from formats.readers import Weights
from models.base import load_base
from models.checkpoints import load_draft, read_config, verify_sums
from speculoos.errors import BadInput, Unsupported
from tests.decoding.conftest import run, tokens_of
from tests.formats.imports.test_layouts import DRAFT_IDS, NEAR, PROMPT, SHUFFLED, plain_text
from tests.formats.imports.writers import HIDDEN, LAYERS, LINEAR, LLAMA, VOCABULARY, Random, changed, layer, write

IDS, BLOCK, MASK = [0, 1, 3], 5, 0
POSITIONS = 9


def zlab(**options: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A draft as z-lab saves it. Options: `layers`, `biases`, `ids` (None: left out), `nested` (block_size in
    dflash_config), `config`."""
    random, ids = Random(5), options.get("ids", IDS)
    config = {**LLAMA, "model_type": "qwen3", "num_hidden_layers": options.get("layers", 2)}
    config |= {"architectures": ["DFlashDraftModel"], "num_target_layers": LAYERS, **options.get("config", {})}
    section: dict[str, Any] = {"mask_token_id": MASK} | ({} if ids is None else {"target_layer_ids": ids})
    (section if options.get("nested") else config)["block_size"] = BLOCK
    config["dflash_config"] = section
    fused = 1 if ids is None else len(ids)  # the base of the tests has four layers, so one is fused by default
    tensors = {"fc.weight": random.matrix(HIDDEN, fused * HIDDEN)}
    tensors |= {name: random.norm(HIDDEN) for name in ("hidden_norm.weight", "norm.weight")}
    for index in range(config["num_hidden_layers"]):
        prefix = f"layers.{index}."
        tensors |= layer(random, prefix, config, HIDDEN, biases=options.get("biases", ""), qk=True)
        tensors[f"{prefix}input_layernorm.weight"] = random.norm(HIDDEN)
    return config, tensors


def speculators(draft_ids: Any = None, **options: Any) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """As speculators saves it: ids of inputs, and with a draft vocabulary lm_head, d2t and t2d."""
    config, tensors = zlab(**options)
    del config["dflash_config"], config["block_size"], config["num_target_layers"]
    if draft_ids is not None:
        tensors["lm_head.weight"] = Random(6).matrix(len(draft_ids), HIDDEN)
        tensors["d2t"] = draft_ids - torch.arange(len(draft_ids))
        tensors["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool)
        tensors["t2d"][draft_ids] = True
    return {
        "speculators_model_type": "dflash",
        "architectures": ["DFlashDraftModel"],
        "transformer_layer_config": config,
        "draft_vocab_size": VOCABULARY if draft_ids is None else len(draft_ids),
        "block_size": BLOCK,
        "mask_token_id": MASK,
        "aux_hidden_state_layer_ids": [i + 1 for i in IDS],
        "sliding_window_non_causal": False,
        "sample_from_anchor": False,
        "speculators_config": {"algorithm": "dflash", "verifier": {"name_or_path": "org/base", "architectures": []}},
    }, tensors


def in_transformers_names(published: Any) -> Any:
    def rename(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors["encoder.fc.weight"] = tensors.pop("fc.weight")
        tensors["encoder.output_norm_enc.weight"] = tensors.pop("hidden_norm.weight")
        config |= {"model_type": "muse_glimmer_assistant", "architectures": ["MuseGlimmerAssistantModel"]}
        config |= config.pop("dflash_config")

    return changed(published, rename)


PUBLISHED = {
    "z-lab": zlab(),
    "one layer, block size beside the layers": zlab(layers=1, nested=True),
    "layers by z-lab's rule": zlab(ids=None),
    "other heads": zlab(config={"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8}),
    "linear rope": zlab(config={"rope_scaling": LINEAR, "rope_theta": 500.0}),
    "biases": zlab(biases="qkv o", config={"attention_bias": True}),
    "transformers": in_transformers_names(zlab()),
    "speculators": speculators(),
    "speculators, a draft vocabulary": speculators(DRAFT_IDS),
    "speculators, by frequency": speculators(SHUFFLED),
}


def reference(published: Any, folder: Any) -> BlockDraft:
    """The network of `formats.dflash_readers` on the published tensors, under z-lab's names."""
    config, tensors = published
    tensors = {
        {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}.get(n, n): t
        for n, t in tensors.items()
    }
    weights = Weights(write(folder, (config, tensors)) / "model.safetensors")
    layers = config.get("transformer_layer_config", config)
    scaling = layers.get("rope_scaling") and {**layers["rope_scaling"], "rope_type": layers["rope_scaling"]["type"]}
    config = {"head_dim": HIDDEN // layers["num_attention_heads"], **layers, "rope_scaling": scaling}
    return BlockDraft(config, weights, (), BLOCK, MASK, torch.arange(0), "lm_head.weight" in tensors)


@pytest.mark.parametrize("name", PUBLISHED)
@torch.no_grad()
def test_a_published_draft_computes_the_same_here(name, base, tiny_base, imported, tmp_path):
    published = PUBLISHED[name]
    folder, report = imported(published)
    verify_sums(folder)
    expected_layout = "speculators-dflash" if name.startswith("speculators") else "dflash"
    assert (report["format"], report["method"]) == (expected_layout, "dflash")
    draft, network = load_draft(folder, base), reference(published, tmp_path / "reference")
    assert draft.layers_wanted == ((2,) if "rule" in name else tuple(IDS))
    aux = Random(7).matrix(POSITIONS, len(draft.layers_wanted) * HIDDEN) * 5
    token = 42
    x = network.outputs(aux, base.embed_tokens(torch.tensor([token] + [MASK] * (BLOCK - 1))))
    expected = network.weights.linear(x, "lm_head.weight") if network.own_head else base.logits(x)
    for runner in (BlockRunner(draft), packed(folder, tiny_base)):
        cache = runner.new_cache()
        runner.inject(aux[:4], cache)
        runner.inject(aux[4:], cache)
        torch.testing.assert_close(runner.logits(runner.block(token, cache)), expected, **NEAR)
        assert cache.length == POSITIONS
    fast_base = load_base(tiny_base)
    target = fast_target(fast_base, 200)
    steps = run(target, make_drafter(target, load_draft(folder, fast_base)), PROMPT, max_tokens=16)
    assert tokens_of(steps) == plain_text(tiny_base)


def packed(folder: Any, tiny_base: Any) -> PackedBlockRunner:
    base = load_base(tiny_base)
    return PackedBlockRunner(load_draft(folder, base), torch.float32)


def test_the_bases_own_tensors_in_a_file_are_not_stored(base, imported):
    """Older versions of speculators store them."""

    def add(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        tensors["embed_tokens.weight"] = base.embed_tokens.weight.detach().clone()
        tensors["lm_head.weight"] = base.lm_head.weight.detach().clone()
        tensors |= {f"verifier_{name}.weight": torch.zeros(1) for name in ("lm_head", "norm")}

    folder, _ = imported(changed(speculators(), add))
    assert read_config(folder)["draft_vocab_size"] == 0
    assert not [name for name, _ in load_draft(folder, base).named_parameters() if "embed" in name or "head" in name]


def with_config(published: Any, section: str = "", **more: Any) -> Any:
    """`published` with more keys in its config, or in one section of it."""

    def change(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        config |= {section: {**config[section], **more}} if section else more

    return changed(published, change)


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "use_sliding_window": True}
REFUSED = {
    "DSpark": (with_config(zlab(), architectures=["Qwen3DSparkModel"]), "DSpark is not supported; DFlash is"),
    "DFlash2": (with_config(zlab(), architectures=["DFlash2DraftModel"]), "DFlash2 is not supported; DFlash is"),
    "speculators' DSpark": (
        with_config(speculators(), speculators_model_type="dspark"),
        "supported are .*dflash",
    ),
    "speculators' DFlash2": (
        with_config(speculators(), speculators_model_type="dflash2"),
        "supported are .*dflash",
    ),
    "drafts at the anchor": (
        with_config(speculators(), sample_from_anchor=True),
        "sample_from_anchor: .* as DSpark does",
    ),
    "causal": (with_config(zlab(), "dflash_config", causal=True), "causal: .* causal mask"),
    "sliding window": (with_config(zlab(), **SLIDING), "sliding_window: .* only drafts with full attention"),
    "no mask token": (
        with_config(zlab(), "dflash_config", mask_token_id=None),
        "mask_token_id: expected a token of the base model",
    ),
    "a mask beyond": (
        with_config(zlab(), "dflash_config", mask_token_id=320),
        "mask_token_id: expected a token of the base model",
    ),
    "no block size": (with_config(zlab(), block_size=None), "block_size is missing"),
    "a block of one token": (with_config(zlab(), block_size=1), "block_size: expected 2 to 64, got '1'"),
    "a long block": (with_config(zlab(), block_size=65), "block_size: expected 2 to 64, got '65'"),
    "layer beyond": (
        with_config(zlab(), "dflash_config", target_layer_ids=[0, 1, 4]),
        "expected layers 0 to 3 .* got 4",
    ),
    "embeddings as a layer": (
        with_config(speculators(), aux_hidden_state_layer_ids=[0, 2, 3]),
        "expected layers 1 to 4 .* got 0",
    ),
    "fewer layers": (
        with_config(zlab(), "dflash_config", target_layer_ids=[0, 1]),
        "has 2 layers, and fc.weight takes 3",
    ),
    "hidden size": (with_config(zlab(), hidden_size=64), "hidden_size is 64, the base model tiny has 32"),
    "other embeddings": (
        changed(
            zlab(), lambda config, tensors: tensors.update({"embed_tokens.weight": torch.ones(VOCABULARY, HIDDEN)})
        ),
        "embed_tokens.weight differs from the embeddings",
    ),
    "another part": (
        changed(zlab(), lambda config, tensors: tensors.update({"markov_w1.weight": torch.ones(4)})),
        "contains markov_w1.weight, which is not part",
    ),
    "no head": (
        with_config(speculators(), draft_vocab_size=40),
        "lm_head.weight is missing, and draft_vocab_size is 40",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_and_unfit_drafts_are_refused(name, imported):
    published, message = REFUSED[name]
    with pytest.raises((BadInput, Unsupported), match=message):
        imported(published)


def test_a_separate_mask_embedding_is_refused(imported, tmp_path):
    folder = tmp_path / "published"
    folder.mkdir()
    torch.save({"embedding": torch.zeros(HIDDEN)}, folder / "mask_embedding.pt")
    with pytest.raises(Unsupported, match="mask_embedding.pt: drafts with a separate mask embedding"):
        imported(zlab())
