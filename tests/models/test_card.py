"""Cards are made from files alone and list what a base supports."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from models.card import METHODS, make_card, memory_needed, unsupported_reasons
from models.families import unsupported_reason
from models.identity import weights_sha256
from models.memory import cache_bytes
from speculoos.errors import BadInput
from tests.tiny import FAMILIES, make_tiny_base
from tracking.tables import Base
from workers.jobs import sizes


def test_a_card_says_what_transformers_says(tiny_base: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base)
    card = make_card(tiny_base)
    assert card["parameters"] == model.num_parameters()
    assert (card["layers"], card["hidden_size"], card["vocabulary"]) == (4, 32, model.config.vocab_size)
    assert card["architecture"] == "LlamaForCausalLM" and card["dtype"] == "float32" and card["max_length"] == 512
    assert card["chat_template"] and card["weights_sha256"] == weights_sha256(tiny_base)
    assert card["methods"] == dict.fromkeys(METHODS, "")
    assert json.loads(json.dumps(card)) == card


@pytest.mark.integration
def test_a_card_needs_no_torch(tiny_base: Path) -> None:
    lines = ("import sys", "from models.card import make_card", f"make_card({str(tiny_base)!r})")
    code = "; ".join((*lines, "assert 'torch' not in sys.modules"))
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_memory_is_weights_plus_cache() -> None:
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    needed = memory_needed(134_515_008, config)
    assert needed["float32"] == 4 * (134_515_008 + 2 * 30 * 3 * 64 * 2048)
    assert needed["bfloat16"] * 2 == needed["float32"]


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ({"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024}, 2 * 12 * 768),  # GPT-2
        ({"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "hidden_size": 1024,
          "head_dim": 128}, 2 * 28 * 8 * 128),  # Qwen3-0.6B
        ({"n_layers": 32, "n_heads": 32, "d_model": 4096}, 2 * 32 * 4096),  # MPT
        ({}, 0),
    ],
)  # fmt: skip
def test_a_kv_cache_is_counted_by_the_names_of_every_family(config: dict[str, int], numbers: int) -> None:
    assert cache_bytes(config, 1000, 2) == numbers * 1000 * 2
    assert cache_bytes({"text_config": config}, 4096, 2) == numbers * config.get("n_positions", 4096) * 2
    card = {"layers": 28, "heads": 16, "kv_heads": 8, "hidden_size": 1024, "head_dim": 128}
    assert sizes.cache_bytes(Base(card=card)) == 2 * 28 * 8 * 128 * 4


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"]}, "qwen3_next keeps a recurrent state"),
        ({"model_type": "new", "layer_types": ["full_attention", "linear_attention"]}, "new keeps a recurrent state"),
        (
            {"model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"]},
            "Qwen2_5_VLForConditionalGeneration is not a text-only causal model",
        ),
        ({"model_type": "bert", "architectures": ["BertLMHeadModel"]}, "bert attends to later tokens too"),
        (
            {"model_type": "new", "architectures": ["NewForCausalLM"], "final_logit_softcapping": 30.0},
            "How new applies final_logit_softcapping to its logits is unknown",
        ),
        ({"model_type": "bert", "architectures": ["BertModel"]}, "no language-model head"),
    ],
)
def test_an_unsupported_base_says_why(config: dict, reason: str) -> None:
    assert all(reason in text for text in unsupported_reasons(config).values())


@pytest.mark.parametrize(
    "odd", [{"text_config": {"model_type": ["a"]}}, {"layer_types": [{}, 3]}, {"layer_types": "conv"}]
)
def test_a_config_that_makes_no_sense_is_no_traceback(odd: dict) -> None:
    assert set(unsupported_reasons({"model_type": "llama", **odd}).values()) == {""}


@pytest.mark.parametrize("family", ["phi", "granite", "gemma2", "cohere"])
def test_a_bias_a_known_scale_and_a_known_cap_are_supported(family: str, tmp_path: Path) -> None:
    kind, overrides = FAMILIES[family]
    assert make_card(make_tiny_base(tmp_path / "base", kind, **overrides))["methods"] == dict.fromkeys(METHODS, "")


@pytest.mark.parametrize(
    "kind", ["qwen3_next", "qwen3_5_text", "jamba", "lfm2", "mamba", "rwkv", "minimax", "falcon_h1", "recurrent_gemma"]
)
def test_a_family_that_cannot_roll_back_is_refused(kind: str) -> None:
    assert "recurrent state" in unsupported_reason({"model_type": kind})


@pytest.mark.parametrize(
    "kind", ["llama", "qwen3", "gemma3_text", "phi", "opt", "gpt2", "../mamba/x", "mamba/../mamba"]
)
def test_other_families_are_not_taken_for_recurrent_ones(kind: str) -> None:
    assert "recurrent state" not in unsupported_reason({"model_type": kind})


def test_the_license_is_read_from_the_readme(tiny_base: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_base, tmp_path / "copy")
    assert make_card(folder)["licence"] == ""
    (folder / "README.md").write_text("---\nlanguage: en\nlicense: apache-2.0\n---\n# Model\n")
    assert make_card(folder)["licence"] == "apache-2.0"


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no config.json"):
        make_card(tmp_path)
