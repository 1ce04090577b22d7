"""Of an untrusted folder, transformers sees no key that fetches or runs code and no file that was not hashed."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from models import untrusted
from models.base import load_base
from models.identity import chat_template, tensors, weights_sha256
from speculoos.errors import BadInput, Unsupported
from tests.models import hostile
from tests.tiny import CHATML, make_tiny_base

KERNEL = "kernels-community/flash-attn2"
CODE = {"AutoModelForCausalLM": "evil/code--modeling.Evil", "AutoTokenizer": ["evil/code--tok.Evil", None]}
FETCHING = {
    **{"_attn_implementation": KERNEL, "attn_implementation": KERNEL, "_attn_implementation_internal": KERNEL},
    **{"experts_implementation": "evil/experts", "_experts_implementation": "evil/experts", "auto_map": CODE},
    **{"custom_pipelines": {"chat": {"impl": "pipe.Evil", "pt": ["AutoModel"]}}, "use_kernels": True},
    **{"configuration_files": ["config.0.0.0.json"], "transformers_weights": "other.safetensors"},
}
GPTQ = {"quant_method": "gptq", "bits": 4}


@pytest.fixture
def folder(tiny_base: Path, tmp_path: Path) -> Path:
    return hostile.copy(tiny_base, tmp_path / "copy")


@pytest.mark.parametrize("key", FETCHING)
def test_a_key_that_fetches_or_runs_code_is_dropped_and_the_model_computes_the_same(
    key: str, folder: Path, tiny_base: Path
) -> None:
    hostile.put(folder, "config.json", **{key: FETCHING[key]})
    hostile.put(folder, "tokenizer_config.json", auto_map=CODE, fast_tokenizer_files=["tokenizer.0.0.0.json"])
    hostile.put(folder, "config.0.0.0.json", model_type="gpt2")
    hostile.put(folder, "tokenizer.0.0.0.json", version="other")
    ids = torch.arange(8)[None]
    loaded, original = load_base(folder), load_base(tiny_base)
    assert torch.equal(loaded.model(ids).logits, original.model(ids).logits)
    assert loaded.config._attn_implementation == original.config._attn_implementation
    assert loaded.tokenizer("a fox 🦊")["input_ids"] == original.tokenizer("a fox 🦊")["input_ids"]


def test_such_keys_are_dropped_in_nested_configs_too(tmp_path: Path) -> None:
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "vocab_size": 320, "head_dim": 8}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2}
    folder = make_tiny_base(tmp_path / "wrapped", "gemma3_text", **text)
    whole = {"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"], "vision_config": {**FETCHING}}
    hostile.edit(
        folder / "config.json", lambda original: {**whole, "text_config": {**original, **FETCHING}, **FETCHING}
    )
    with untrusted.sanitised_folder(folder) as clean:
        config_text = (clean / "config.json").read_text()
        config = AutoConfig.from_pretrained(clean)
    assert "evil" not in config_text and KERNEL not in config_text and "vision_config" in json.loads(config_text)
    assert config.text_config._attn_implementation != KERNEL and not hasattr(config.text_config, "auto_map")


def test_only_the_files_that_were_hashed_are_shown(folder: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "sharded", max_shard_size="50KB")
    for path in (tmp_path / "sharded").glob("model*"):
        shutil.copy(path, folder)
    before = weights_sha256(folder)  # of the shards; transformers would take model.safetensors
    make_tiny_base(tmp_path / "other", seed=1)
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    for name in ("modeling_evil.py", "adapter_config.json", "custom_generate.py", "tekken.json", "processor.json"):
        (folder / name).write_text("{}")
    with untrusted.sanitised_folder(folder) as clean:
        names = {path.name for path in clean.iterdir()}
        model = AutoModelForCausalLM.from_pretrained(clean)
    assert weights_sha256(folder) == before and not clean.exists()
    assert not names & {"modeling_evil.py", "adapter_config.json", "tekken.json", "processor.json", "model.safetensors"}
    assert torch.equal(model.lm_head.weight, load_base(folder).lm_head.weight)
    assert torch.equal(model.lm_head.weight, AutoModelForCausalLM.from_pretrained(tmp_path / "sharded").lm_head.weight)


@pytest.mark.parametrize("values", [{"compression_config": GPTQ}, {"text_config": {"quantization_config": GPTQ}}])
def test_quantization_that_transformers_would_overlook_is_refused(folder: Path, values: dict) -> None:
    hostile.put(folder, "config.json", **values)
    with pytest.raises(Unsupported, match=r"config\.json: its weights are quantized \(gptq\)"):
        load_base(folder)


@pytest.mark.parametrize(
    "sizes",
    [
        {"vocab_size": 4_000_000_000},
        {"vocab_size": 10**30},
        {"num_hidden_layers": 10**9},
        {"intermediate_size": 10**8},
        {"num_attention_heads": 10**7},
        {"max_position_embeddings": 10**12},
        {"text_config": {"vocab_size": 10**9}},
    ],
    ids=lambda sizes: next(iter(sizes)),
)
def test_sizes_that_the_weights_do_not_have_are_refused_before_memory_is_taken(folder: Path, sizes: dict) -> None:
    hostile.put(folder, "config.json", **sizes)
    with pytest.raises(BadInput, match=rf"config\.json: [a-z_.]*{[*sizes][0]}.* does not match the weights"):
        load_base(folder)


def test_missing_weights_are_reported_instead_of_initialized(folder: Path) -> None:
    hostile.put(folder, "config.json", num_hidden_layers=6)
    with pytest.raises(BadInput, match="lack 18 weights.*model.layers.4"):
        load_base(folder)


NAMED = [{"name": "tools", "template": "T"}, {"name": "default", "template": CHATML}]


@pytest.mark.parametrize("shape", [CHATML, NAMED, {"default": CHATML, "tools": "T"}], ids=["text", "list", "object"])
@pytest.mark.parametrize("file_name", ["tokenizer_config.json", "chat_template.json"])
def test_templates_with_names_give_the_default_one(folder: Path, shape: object, file_name: str) -> None:
    (folder / "chat_template.jinja").unlink()
    hostile.put(folder, file_name, chat_template=shape)
    assert chat_template(folder) == CHATML
    assert load_base(folder).tokenizer.chat_template == CHATML


def test_a_list_of_templates_may_be_the_whole_file(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.json").write_text(json.dumps(NAMED))
    assert load_base(folder).tokenizer.chat_template == CHATML


def test_a_plain_folder_shows_what_it_holds(tiny_base: Path) -> None:
    with untrusted.sanitised_folder(tiny_base) as clean:
        assert AutoTokenizer.from_pretrained(clean).chat_template == CHATML
    untrusted.check_sizes(tiny_base, untrusted.read_safe_config(tiny_base), tensors(tiny_base))
