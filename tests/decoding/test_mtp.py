"""A base model's multi-token prediction layer is found in its files, loaded, and drafts as in transformers."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.mtp import load_mtp
from decoding.generate import generate
from decoding.target import Target
from models.base import load_base
from models.card import make_card
from models.families import has_recurrent_state
from models.mtp import mtp_layers, mtp_reason
from serving.catalog import ModelRef
from serving.pool import ModelPool
from speculoos.errors import BadInput, Unsupported
from tests.decoding.test_lossless import ALARM
from tests.decoding.test_lossless_drafters import TREE, check_distribution
from tests.tiny import make_tiny_base

EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "n_shared_experts": 1}
EXPERTS |= {"first_k_dense_replace": 1, "moe_intermediate_size": 16, "head_dim": 8, "num_hidden_layers": 3}
PROMPT = list(range(5, 25))
FREQUENT = slice(40, 44)
"""Token ids that are frequent in the test of sampling."""


def randomize(module: nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            bounds = (0.5, 1.5) if parameter.dim() == 1 else (-0.3, 0.3)
            nn.init.uniform_(parameter, *bounds)


def checkpoint_tensors(name: str, value: Tensor, layer: int) -> dict[str, Tensor]:
    """A tensor of transformers' MtpModel under its names in GLM's and DeepSeek's files: a layer after the last."""
    name = name.replace("mtp_block.", "").replace("post_norm", "shared_head.norm")
    name = f"model.{name.replace('layers.0.', f'layers.{layer}.')}"
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return {name: value}
    parts, tensors = {}, name.rpartition(".")
    for expert, matrix in enumerate(value):
        halves = (
            zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True)
            if "gate_up" in name
            else [("down_proj", matrix)]
        )
        parts |= {f"{tensors[0]}.{expert}.{kind}.weight": half.clone() for kind, half in halves}
    return parts


@pytest.fixture(scope="module")
def glm(tmp_path_factory) -> Path:
    """A tiny GLM-4.5 with an MTP layer, every weight random."""
    from transformers import AutoModelForCausalLM
    from transformers.modeling_layers import MtpModel

    folder = make_tiny_base(tmp_path_factory.mktemp("mtp") / "glm", "glm4_moe", **EXPERTS)
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(folder)
    randomize(model)
    model.save_pretrained(folder)
    layer = MtpModel(model, 1)
    randomize(layer.layers)
    file, count = folder / "model.safetensors", model.config.num_hidden_layers
    tensors = load_file(file)
    for name, value in layer.named_parameters():
        if name.startswith("layers."):
            tensors |= checkpoint_tensors(name, value.detach().clone(), count)
    tensors[f"model.layers.{count}.mlp.gate.e_score_correction_bias"] = torch.zeros(4)
    save_file(tensors, file, {"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def base(glm):
    return load_base(glm)


def test_the_card_counts_the_layers_and_leaves_them_out_of_the_parameters(glm, base, tiny_base) -> None:
    card = make_card(glm)
    assert card["mtp"] == {"layers": 1, "reason": ""}
    assert card["parameters"] == base.model.num_parameters() + sum(
        buffer.numel() for name, buffer in base.model.named_buffers() if name.endswith("e_score_correction_bias")
    )
    assert make_card(tiny_base)["mtp"] == {}


@pytest.mark.parametrize(
    ("config", "names", "layers"),
    [
        ({"num_hidden_layers": 61, "num_nextn_predict_layers": 1}, ["model.layers.61.eh_proj.weight"], 1),
        ({"num_hidden_layers": 61, "num_nextn_predict_layers": 1}, ["model.layers.60.mlp.up_proj.weight"], 0),
        ({"text_config": {"num_hidden_layers": 64, "mtp_num_hidden_layers": 1}}, ["mtp.fc.weight"], 1),
        ({"num_hidden_layers": 36}, ["model.mtp_layers.0.input_proj.weight"], 1),
        ({"num_hidden_layers": 48}, [f"model.mtp.layers.{i}.eh_proj.weight" for i in range(3)], 3),
        ({"num_hidden_layers": 28}, ["model.mtp_block.0.mlp.up_proj.weight", "model.mtp_emb_norm.0.weight"], 1),
        ({"num_hidden_layers": 2}, ["model.layers.1.attempt.weight"], 0),
        ({}, ["model.layers.9.mlp.up_proj.weight"], 0),
    ],
)
def test_layers_are_counted_in_the_files(config, names, layers) -> None:
    assert mtp_layers(config, names) == layers


def test_families_without_usable_layers_have_a_reason() -> None:
    assert mtp_reason({"model_type": "glm4_moe"}) == ""
    assert "keys and values of different sizes" in mtp_reason({"model_type": "deepseek_v3", "kv_lora_rank": 512})
    assert has_recurrent_state("qwen3_5_text") and "recurrent state" in mtp_reason({"model_type": "qwen3_5_text"})
    assert "no MTP layers for mimo" in mtp_reason({"model_type": "mimo"})
    assert "quantized" in mtp_reason({"model_type": "glm4_moe", "quantization_config": {"quant_method": "fp8"}})


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mellum"}, "Its MTP layers have sliding attention"),  # the family's default
        ({"model_type": "mellum", "mtp_layer_types": ["full_attention"]}, ""),
        ({"model_type": "glm4_moe", "mtp_layer_types": ["sliding_attention"]}, "Its MTP layers have sliding attention"),
        (
            {"model_type": "glm4_moe", "num_hidden_layers": 1, "layer_types": ["full_attention", "sliding_attention"]},
            "Its MTP layers have sliding attention",
        ),
        ({"model_type": "glm4_moe", "num_hidden_layers": 1, "layer_types": ["sliding_attention"]}, ""),
    ],
)
def test_layers_with_sliding_attention_have_a_reason(config, reason) -> None:
    assert mtp_reason(config).partition(",")[0] == reason


@torch.no_grad()
def test_a_chain_is_what_transformers_drafts(base) -> None:
    """The expected first token comes from `MtpModel` with its own cache."""
    from transformers.cache_utils import MtpCache

    model, ids = load_mtp(base), torch.tensor([PROMPT])
    hidden, _ = base.forward_hidden(ids[:, :-1])
    cache = MtpCache(config=base.config.get_mtp_config())
    positions = torch.arange(1, ids.shape[1])[None]
    tokens, logits, _ = model(ids[:, 1:], hidden, None, positions, cache)
    target = Target(base, max_length=64)
    drafter = make_drafter(target, None, {"drafter": "mtp", "tree": [[0]]})
    runner = drafter.draft
    draft_positions = torch.arange(len(PROMPT) - 1)
    ours = runner.logits(runner(hidden[0], ids[0, 1:], draft_positions, runner.new_cache()))[-1]
    assert torch.allclose(ours, logits[0, -1], atol=1e-5) and int(ours.argmax()) == int(tokens)


@pytest.mark.parametrize(
    "options", [{"tree": [[0, 0, 0]]}, {"depth": 2, "top_k": 3, "nodes": 6}, {"tree": [[0, 0], [1]]}]
)
def test_greedy_text_is_that_of_the_base_model(base, options) -> None:
    target = Target(base, max_length=96)
    drafter = make_drafter(target, None, {"drafter": "mtp", **options})
    steps = list(generate(target, drafter, PROMPT, GenerateConfig(max_tokens=40, eos_ids=frozenset())))
    tokens = [token.id for step in steps for token in step.tokens]
    plain = base.model.generate(torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None)
    assert tokens == plain[0, len(PROMPT) :].tolist()
    assert any(step.draft_record.tokens for step in steps)


def test_sampled_trees_keep_the_bases_distribution(glm) -> None:
    base = load_base(glm)
    with torch.no_grad():
        base.model.lm_head.weight[FREQUENT] *= 8  # so that the base model and its MTP layer agree on some tokens
    target = Target(base, max_length=64)
    drafter = make_drafter(target, None, {"drafter": "mtp", "tree": TREE, "sample": True})
    check_distribution(target, drafter, PROMPT, 0.7, ALARM)


def test_a_second_turn_computes_only_what_is_new(glm) -> None:
    """The server keeps the drafter and counts the bytes of the layer."""
    pool = ModelPool("cpu", "float32", 2**40)
    loaded = pool.get(ModelRef("glm", str(glm), "b" * 64))
    before, options = pool.nbytes, {"drafter": "mtp", "tree": [[0, 0]]}
    drafter = loaded.drafter(options)
    weights = sum(weight.nbytes for weight in loaded.target.base.mtp.layers.parameters())
    assert pool.nbytes == before + weights + drafter.nbytes() > before
    steps = list(generate(loaded.target, drafter, PROMPT, GenerateConfig(max_tokens=8, eos_ids=frozenset())))
    turn = [*PROMPT, *(token.id for step in steps for token in step.tokens), 7]
    again = pool.get(ModelRef("glm", str(glm), "b" * 64)).drafter(options)
    assert again is drafter and again.max_reusable_prefix(turn) >= len(PROMPT)


def test_a_tree_wider_than_the_vocabulary_is_refused(base) -> None:
    tree = [[base.vocab_size]]
    with pytest.raises(BadInput, match="use a narrower tree"):
        make_drafter(Target(base, max_length=64), None, {"drafter": "mtp", "tree": tree})


def test_a_model_without_layers_or_with_missing_tensors_is_refused(glm, base, tiny_base, tmp_path) -> None:
    plain = load_base(tiny_base)
    with pytest.raises(Unsupported, match="has no multi-token prediction layers in its files"):
        make_drafter(Target(plain, max_length=64), None, {"drafter": "mtp"})
    broken = Path(shutil.copytree(glm, tmp_path / "broken"))
    tensors = load_file(broken / "model.safetensors")
    del tensors["model.layers.3.eh_proj.weight"]
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(Unsupported, match="of broken cannot be loaded: .*missing"):
        load_mtp(load_base(broken))
