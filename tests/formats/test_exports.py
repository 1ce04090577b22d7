"""Exports: why a format refuses a draft, what the files contain, and what transformers does with them. Every kind of
draft in every format is in test_round_trip.py."""

import json

import pytest
from safetensors.torch import load_file

from formats import FORMATS
from formats.export import build_export
from formats.options import export_options
from speculoos.checksums import find_changed_files, read_checksums
from speculoos.errors import Conflict
from tests.formats.test_round_trip import EAGLE3


def test_the_standalone_draft_has_tokens_accepted(base, checkpoint, tmp_path):
    """Drafts with random weights never predict a token, so only here can the count of accepted tokens be above 0."""
    report = build_export(checkpoint("draft"), base, "huggingface", tmp_path / "out")
    assert report.figures["accepted"] > 0


@pytest.mark.parametrize(
    ("kind", "name", "message"),
    [
        ("eagle-normed", "vllm", "use_last_layernorm"),
        ("eagle-normed", "sglang", "use_last_layernorm"),
        ("eagle", "trtllm", "EAGLE-3 only"),
        ("eagle3-residual", "sglang", "norm_before_residual"),
        ("eagle3-unordered", "vllm", "ascending order"),
        ("medusa-bare", "vllm", "medusa_num_layers 0"),
        ("medusa-small", "trtllm", "draft_vocab_size=0"),
        ("medusa-small", "vllm", "draft_vocab_size=0"),
        ("medusa", "sglang", "SGLang never had Medusa"),
        ("draft", "vllm", "huggingface"),
        ("peagle-deep", "speculators", "`fc_norm`"),
        ("peagle", "sglang", "does not support this method"),
        ("eagle", "gguf", "EAGLE-3 only"),
        ("medusa", "gguf", "does not support Medusa"),
        ("eagle3-four", "gguf", "always fuses three"),
        ("eagle3-deep", "gguf", "support only one"),
        ("eagle3-each-norm", "gguf", "trained with fc_norm, which llama.cpp does not read"),
        ("eagle3-fused-norm", "gguf", "trained with norm_output, which llama.cpp does not read"),
        ("eagle3-joined-norm", "modelopt", "trained with norm_before_fc, which ModelOpt does not read"),
        ("dflash-small", "sglang", "draft_vocab_size=0"),
        ("dflash-small", "huggingface", "draft_vocab_size=0"),
        ("dflash-biased", "gguf", "attention_bias"),
        ("dflash", "trtllm", "does not support DFlash"),
    ],
)
def test_a_refusal_gives_the_reason(kind, name, message, base, checkpoint):
    reasons = {option.name: option.reason for option in export_options(checkpoint(kind), base.path)}
    assert message in reasons[name]


def test_the_readme_says_which_servers_read_the_norms(base, checkpoint, tmp_path):
    build_export(checkpoint("eagle3-each-norm"), base, "trtllm", tmp_path / "out")
    assert (
        "The draft has `fc_norm`, which TensorRT-LLM reads since June 2026." in (tmp_path / "out/README.md").read_text()
    )
    assert config_of(tmp_path / "out")["fc_norm"] is True
    build_export(checkpoint("eagle3-joined-norm"), base, "trtllm", tmp_path / "one")
    assert "`norm_before_fc`, which TensorRT-LLM reads since March 2026." in (tmp_path / "one/README.md").read_text()


def test_a_setting_that_no_server_knows_is_refused_by_name(base, checkpoint):
    """A later version of a network must not be exported by rules that do not know it."""
    from models.checkpoints import update_draft_config

    folder = checkpoint("eagle3")
    update_draft_config(folder, thinks_twice=True)
    reasons = {option.name: option.reason for option in export_options(folder, base.path)}
    assert all("`thinks_twice`" in reasons[name] for name in EAGLE3) and reasons["own"] == ""


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def test_layers_are_counted_as_each_server_counts_them(base, checkpoint, tmp_path):
    """Outputs 0, 2 and 6 of the base are inputs 1, 3 and 7. Only the speculators format lists the default layers, which
    servers require there."""
    outputs, inputs = [0, 2, 6], [1, 3, 7]
    key = "eagle_aux_hidden_state_layer_ids"
    for name in EAGLE3:
        build_export(checkpoint("eagle3-small"), base, name, tmp_path / f"small-{name}")
        build_export(checkpoint("eagle3"), base, name, tmp_path / f"usual-{name}")
        assert (key in json.dumps(config_of(tmp_path / f"usual-{name}"))) == (name == "speculators")
    configs = {name: config_of(tmp_path / f"small-{name}") for name in EAGLE3}
    assert configs["vllm"][key] == configs["vllm"]["eagle_config"][key] == configs["speculators"][key] == inputs
    assert configs["sglang"]["eagle_config"][key] == configs["modelopt"]["eagle_config"][key] == outputs
    assert "eagle3_layers_to_capture: [0, 2, 6]" in (tmp_path / "small-trtllm" / "README.md").read_text()


def test_tensors_are_those_the_loader_wants(base, checkpoint, tmp_path):
    def tensors(kind, name, file="model.safetensors"):
        build_export(checkpoint(kind), base, name, tmp_path / f"{kind}-{name}")
        return load_file(tmp_path / f"{kind}-{name}" / file)

    eagle = tensors("eagle", "sglang")
    assert not eagle["fc.bias"].any() and "layers.0.input_layernorm.weight" not in eagle
    assert "fc.bias" not in tensors("eagle", "vllm")
    small = tensors("eagle3-small", "sglang")
    assert (small["d2t"] == 5).all() and small["t2d"].sum() == 200 and not [n for n in small if "embed" in n]
    assert not {"d2t", "t2d"} & {*tensors("eagle3", "vllm")}, "a whole vocabulary needs no map"
    assert "t2d" not in tensors("eagle3-small", "modelopt")
    shared = tensors("medusa-shared", "medusa", "medusa_lm_head.safetensors")
    assert all((shared[f"{head}.1.weight"] == base.lm_head.weight).all() for head in range(3))


def test_shared_heads_are_not_rounded_to_the_type_of_their_blocks(base, checkpoint, tmp_path):
    """Blocks in bfloat16 beside a base in float32: the base's matrix is written as it is."""
    build_export(checkpoint("medusa-shared", "bfloat16"), base, "vllm", tmp_path / "out")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    assert [name for name in tensors if "lm_head" in name] == ["lm_heads.0.weight"]
    assert (tensors["lm_heads.0.weight"] == base.lm_head.weight).all()
    assert config_of(tmp_path / "out")["torch_dtype"] == "float32"


def test_transformers_takes_the_standalone_draft_as_an_assistant(base, checkpoint, tmp_path):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_export(checkpoint("draft"), base, "huggingface", tmp_path / "out")
    draft = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("the quick brown fox", return_tensors="pt").input_ids
    options = {"max_new_tokens": 24, "do_sample": False}
    assert torch.equal(base.model.generate(ids, **options), base.model.generate(ids, assistant_model=draft, **options))
    assert (tmp_path / "out" / "generation_config.json").is_file()


def test_transformers_takes_a_draft_that_shares_its_embeddings_with_its_head(tmp_path):
    """Drafts for the starter share them."""
    import torch
    from transformers import AutoModelForCausalLM

    from models.base import load_base
    from models.checkpoints import save_draft
    from models.standalone import StandaloneDraft
    from tests.tiny import make_tiny_base

    tied = load_base(make_tiny_base(tmp_path / "base", tie_word_embeddings=True))
    ours = StandaloneDraft.from_base(tied, 2)
    save_draft(tmp_path / "draft", ours, {"base": "tied"})
    build_export(tmp_path / "draft", tied, "huggingface", tmp_path / "huggingface")
    loading = {"dtype": torch.float32, "output_loading_info": True}
    draft, info = AutoModelForCausalLM.from_pretrained(tmp_path / "huggingface", **loading)
    assert not info["unexpected_keys"] and not info["missing_keys"]
    chat = [{"role": "user", "content": "Why is the sky blue?"}]
    ids = tied.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    options = {**ids, "do_sample": False, "max_new_tokens": 12}
    with torch.no_grad():
        assert torch.equal(tied.model.generate(**options), tied.model.generate(**options, assistant_model=draft))
        assert torch.allclose(ours.model(**ids).logits, draft(**ids).logits, rtol=1e-4, atol=1e-4)


def test_transformers_drafts_with_a_dflash_draft(base, checkpoint, tmp_path):
    import torch
    from transformers import AutoModel, AutoTokenizer

    build_export(checkpoint("dflash"), base, "huggingface", tmp_path / "out")
    draft = AutoModel.from_pretrained(tmp_path / "out")
    ids = AutoTokenizer.from_pretrained(base.path)("the quick brown fox", return_tensors="pt").input_ids
    options, blocks = {"max_new_tokens": 24, "do_sample": False}, []
    draft.register_forward_hook(lambda *_: blocks.append(1))
    with torch.no_grad():
        answer = base.model.generate(ids, assistant_model=draft, speculation_type="dflash", **options)
    assert torch.equal(base.model.generate(ids, **options), answer) and len(blocks) > 10


def test_a_zip_holds_the_folder_and_nothing_is_overwritten(base, checkpoint, tmp_path):
    import zipfile

    build_export(checkpoint("medusa"), base, "vllm", tmp_path / "out.zip")
    with zipfile.ZipFile(tmp_path / "out.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert [path.name for path in (tmp_path / "unpacked").iterdir()] == ["out"]
    assert not find_changed_files(tmp_path / "unpacked" / "out") and read_checksums(tmp_path / "unpacked" / "out")
    for target in (tmp_path / "out.zip", tmp_path / "unpacked" / "out"):
        with pytest.raises(Conflict, match="already exists"):
            build_export(checkpoint("medusa"), base, "vllm", target)
    (tmp_path / "empty").mkdir()
    assert build_export(checkpoint("medusa"), base, "vllm", tmp_path / "empty").passed


def test_the_readme_names_the_tree_that_was_measured_best(base, checkpoint, tmp_path):
    from models.checkpoints import update_draft_config

    folder = checkpoint("eagle3")
    update_draft_config(
        folder, drafting={"depth": 2, "top_k": 4, "nodes": 6}, tuning={"verdict": "6 nodes: 1.86 × plain."}
    )
    build_export(folder, base, "sglang", tmp_path / "sglang")
    build_export(folder, base, "vllm", tmp_path / "vllm")
    readme = (tmp_path / "sglang" / "README.md").read_text()
    assert "--speculative-num-steps 3" in readme and "--speculative-eagle-topk 4" in readme and "1.86 × plain" in readme
    assert "--speculative-num-draft-tokens 6" in readme
    assert '"num_speculative_tokens": 3' in (tmp_path / "vllm" / "README.md").read_text()


def test_sglang_s_block_is_as_long_as_the_measured_best_path_of_a_dflash_draft(base, checkpoint, tmp_path):
    """Its block begins with the known token, so two draft tokens take a block of three; untuned, it is the whole."""
    from models.checkpoints import update_draft_config

    folder = checkpoint("dflash")
    build_export(folder, base, "sglang", tmp_path / "untuned")
    update_draft_config(folder, drafting={"tree": [[0], [1], [0, 0]]})
    build_export(folder, base, "sglang", tmp_path / "tuned")
    for name, tokens in (("untuned", 5), ("tuned", 3)):
        readme = (tmp_path / name / "README.md").read_text()
        assert f"--speculative-num-draft-tokens {tokens} " in readme and "--speculative-num-steps" not in readme


@pytest.fixture
def one_prompt(monkeypatch):
    """Use only the first prompt: the starter has the size of a real model."""
    from formats import proof

    monkeypatch.setattr(proof, "PROMPTS", proof.PROMPTS[:1])


@pytest.fixture(scope="module")
def starter():
    from models.base import load_base
    from models.starter import starter_path

    return load_base(starter_path())


@pytest.mark.real
def test_the_starters_head_goes_to_vllm_and_has_tokens_accepted(starter, tmp_path, one_prompt):
    from models.starter import STARTER_HEAD

    assert {o.name for o in export_options(STARTER_HEAD, starter.path) if o.possible} == {
        *("own", "vllm", "vllm-fp8", "vllm-int8", "speculators", "gguf", "gguf-f16", "gguf-q8_0")
    }
    report = build_export(STARTER_HEAD, starter, "vllm", tmp_path / "out")
    assert report.passed and report.figures["accepted"] > 0


@pytest.mark.integration
def test_formats_can_be_listed_without_torch():
    import subprocess
    import sys

    code = "import sys, formats, formats.options, formats.readme; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
    assert [*FORMATS][0] == "own"
