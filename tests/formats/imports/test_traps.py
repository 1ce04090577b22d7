"""A wrong published draft is refused in one sentence that names the key; an odd one is accepted with a notice."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from formats.imports.run import TargetBase, import_draft
from models.base import load_base
from models.checkpoints import load_draft
from speculoos.errors import BadInput, Unsupported
from speculoos.reporting import SilentReporter
from tests.formats.imports import writers
from tests.formats.imports.conftest import read_here
from tests.formats.imports.test_dflash import zlab
from tests.formats.imports.writers import HIDDEN, VOCABULARY, changed
from tests.tiny import make_tiny_base

IDS = "eagle_aux_hidden_state_layer_ids"
DRAFT_IDS = torch.arange(3, VOCABULARY, 2)


def small() -> Any:
    return writers.eagle3(draft_ids=DRAFT_IDS, marked=True)


def without(name: str, published: Any) -> Any:
    return changed(published, lambda config, tensors: tensors.pop(name))


def put(name: str, value: Any, published: Any) -> Any:
    return changed(published, lambda config, tensors: tensors.__setitem__(name, value(tensors)))


def with_config(published: Any, **more: Any) -> Any:
    return changed(published, lambda config, tensors: config.update(more))


FC, Q = "fc.weight", "midlayer.self_attn.q_proj.weight"
REFUSED: dict[str, tuple[Any, str]] = {
    "missing d2t": (without("d2t", without("t2d", small())), r"the tensor d2t is missing: draft_vocab_size is 159"),
    "d2t of absolute ids": (put("d2t", lambda t: DRAFT_IDS, small()), "d2t must map to"),
    "d2t twice": (put("d2t", lambda t: t["d2t"].clamp(max=3), small()), "d2t must map to|t2d contains"),
    "t2d of another": (put("t2d", lambda t: ~t["t2d"], small()), "t2d contains other tokens"),
    "transposed fc": (put(FC, lambda t: t[FC].T, small()), "fc.weight: expected the shape .32, 96., .* transposed"),
    "transposed fc of EAGLE-1": (put(FC, lambda t: t[FC].T, writers.eagle()), "fc.weight: .* it is transposed"),
    "wrong head count": (with_config(small(), num_attention_heads=8, head_dim=8), "q_proj.weight: expected the shape"),
    "wrong key heads": (with_config(small(), num_key_value_heads=4), "k_proj.weight: expected the shape"),
    "too few Medusa heads": (with_config(writers.medusa(), medusa_num_heads=5), "medusa_num_heads is 5, .* are of 3"),
    "other vLLM heads": (with_config(writers.vllm_medusa(), num_heads=1), "num_heads is 1"),
    "wrong blocks": (with_config(writers.medusa(), medusa_num_layers=2), "medusa_num_layers is 2"),
    "matrices of another vocabulary": (
        put("0.1.weight", lambda t: torch.zeros(100, HIDDEN), writers.medusa()),
        "0.1.weight has 100 rows and the base model tiny 320 tokens",
    ),
    "no token map": (
        with_config(without("token_map", writers.vllm_medusa(token_map=DRAFT_IDS)), truncated_vocab_size=None),
        "the tensor token_map is missing",
    ),
    "a head in between": (without("1.1.weight", without("1.0.linear.bias", writers.medusa())), "1.*linear.bias"),
    "other hidden size": (writers.eagle(config={"hidden_size": 16}), "hidden_size is 16, the base model tiny has 32"),
    "other hidden size of EAGLE-3": (writers.eagle3(config={"hidden_size": 16}), "hidden_size is 16"),
    "other target": (with_config(small(), target_hidden_size=64), "target_hidden_size is 64"),
    "other vocabulary": (with_config(small(), vocab_size=1000), "vocab_size is 1000"),
    "left over": (put("mystery.weight", lambda t: torch.zeros(2), small()), "contains mystery.weight"),
    "missing": (
        without("midlayer.mlp.down_proj.weight", small()),
        "the tensor midlayer.mlp.down_proj.weight is missing",
    ),
    "missing bias": (with_config(writers.eagle(), bias=True), "fc.bias is missing"),
    "unwanted bias": (with_config(writers.eagle(fc_bias=True), bias=False), "fc.bias exists"),
    "foreign head": (
        put("lm_head.weight", lambda t: torch.ones(VOCABULARY, HIDDEN), writers.eagle()),
        "lm_head.weight",
    ),
    "layers out of range": (with_config(small(), **{IDS: [0, 2, 9]}), f"{IDS}: .* layers 0 to 3 .* got 9"),
    "an embedding as a layer": (
        with_config(writers.speculators(draft_ids=DRAFT_IDS), **{IDS: [0, 1, 3]}),
        f"{IDS}: .* got 0",
    ),
    "a layer twice": (with_config(small(), **{IDS: [0, 3, 3]}), f"{IDS} has a layer more than once"),
    "too many layers": (with_config(small(), **{IDS: [0, 1, 2, 3]}), f"{IDS} has 4 layers, and fc.weight takes 3"),
    "layer count": (with_config(small(), num_hidden_layers=2), "num_hidden_layers is 2"),
    "dynamic rope": (with_config(small(), rope_scaling={"type": "dynamic", "factor": 2.0}), "rope_scaling: 'dynamic'"),
    "half a rope": (with_config(small(), rope_scaling={"rope_type": "llama3", "factor": 2.0}), "low_freq_factor"),
    "other activation": (with_config(small(), hidden_act="gelu"), "hidden_act 'gelu'"),
    "quantized": (with_config(small(), quantization_config={"quant_method": "fp8"}), "quantization_config"),
    "no number": (with_config(small(), num_attention_heads="four"), "num_attention_heads: expected a whole number"),
    "two norms": (writers.eagle3(each=True, joined=True), "input_norm and fc_norm are both present"),
    "norm promised": (with_config(small(), fc_norm=True), "fc_norm is true and its tensors are missing"),
    "parallel": (with_config(small(), eagle_config={"parallel_draft_step": 4}), "parallel_draft_step 4"),
    "no features": (with_config(small(), eagle_config={"use_aux_hidden_state": False}), "use_aux_hidden_state"),
    "MTP layers of DeepSeek": (
        ({}, {"model.layers.61.eh_proj.weight": torch.zeros(2, 4)}),
        "these are multi-token pred",
    ),
    "MTP layers of Qwen": (({}, {"mtp.layers.0.mlp.up_proj.weight": torch.zeros(2, 4)}), "with the drafter mtp"),
    "MTP of speculators": (with_config(writers.speculators(), speculators_model_type="mtp"), "belong to a base model"),
    "another kind": (with_config(writers.speculators(), speculators_model_type="mlp"), "speculators_model_type 'mlp'"),
    "mask token": (
        with_config(writers.peagle(), mask_token_id=320),
        "mask_token_id: expected a token of the base model",
    ),
    "no mask token": (with_config(writers.peagle(), mask_token_id=None), "mask_token_id: expected a token"),
    "no draft": (({}, {"weight": torch.zeros(2)}), "not a supported draft .its first tensor is weight"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_trap_is_refused_with_a_sentence_that_names_the_key(name, imported, tmp_path):
    published, sentence = REFUSED[name]
    with pytest.raises((BadInput, Unsupported), match=sentence) as error:
        imported(published)
    assert str(tmp_path) not in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "scratch" / "draft").exists()


OWN: dict[str, tuple[Any, dict[str, Any], str]] = {
    "block size": (zlab(), {"block_size": [4]}, "block_size: expected 2 to 64"),
    "mask token": (zlab(), {"mask_token_id": 320}, "mask_token_id: expected 0 to 319, got '320'"),
    "layers": (zlab(), {"aux_layers": [0, 1, 4]}, "aux_layers: expected 0 to 3, got '4'"),
    "no layers": (zlab(), {"aux_layers": 3.5}, "aux_layers: expected 0 to 3, got '3.5'"),
    "layers of EAGLE-3": (writers.eagle3(), {"aux_layers": [0, 1, -1]}, "aux_layers: expected 0 to 3, got '-1'"),
    "depths": (writers.peagle(), {"num_depths": 65}, "num_depths: expected 1 to 64"),
    "mask token of P-EAGLE": (writers.peagle(), {"mask_token_id": "x"}, "mask_token_id: expected 0 to 319, got 'x'"),
    "layers of P-EAGLE": (writers.peagle(), {"aux_layers": [0, 1, 9]}, "aux_layers: expected 0 to 3, got '9'"),
    "a tree in words": (zlab(), {"drafting": {"tree": "chain 4"}}, "published/config.json: drafting: tree: expected"),
    "a tree of numbers": (writers.medusa(), {"drafting": {"tree": [1, 2]}}, "drafting: tree: expected a list"),
    "no option": (zlab(), {"drafting": {"top_k": 4}}, "drafting: Drafter 'dflash' has no option 'top_k'"),
    "no depth": (writers.peagle(), {"drafting": {"depth": "deep"}}, "drafting: depth: expected a whole number"),
    "sizes of a tuning": (zlab(), {"tuning": {"sizes": [{"nodes": 4}]}}, "tuning: not a record of a tuning"),
    "verdict of a tuning": (zlab(), {"tuning": {"verdict": ["fast"]}}, "tuning: not a record of a tuning"),
}


@pytest.mark.parametrize("name", OWN)
def test_a_checkpoint_of_ours_with_a_wrong_value_is_refused(name, imported, tmp_path, tiny_base):
    published, values, sentence = OWN[name]
    (tmp_path / "own").mkdir()
    folder = imported(published)[0].rename(tmp_path / "own" / "published")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    (folder / "SHA256SUMS").unlink()
    with pytest.raises(BadInput, match=sentence) as error:
        read_here(folder, tiny_base, tmp_path / "scratch")
    assert str(tmp_path) not in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "scratch" / "draft").exists()


ODD: dict[str, tuple[Any, str]] = {
    "bf16 declared fp32": (
        changed(small(), lambda config, t: t.update({n: v.bfloat16() for n, v in t.items() if v.is_floating_point()})),
        "torch_dtype: config.json says float32, but the tensors are bfloat16",
    ),
    "more heads than said": (with_config(writers.medusa(), medusa_num_heads=2), "medusa_num_heads: config.json says 2"),
    "a bias of zeros": (put("fc.bias", lambda t: torch.zeros(HIDDEN), writers.eagle()), "fc.bias: all values are zero"),
    "tied and not": (with_config(small(), tie_word_embeddings=True), "tie_word_embeddings: config.json says true"),
    "no head": (without("lm_head.weight", writers.eagle3()), "lm_head.weight: not in the file; the lm_head of tiny"),
    "a sliding window": (
        with_config(small(), layer_types=["sliding_attention"], sliding_window=64),
        "sliding_window: .* 64",
    ),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_draft_is_accepted_with_a_notice(name, imported):
    published, sentence = ODD[name]
    folder, report = imported(published)
    assert [notice for notice in report["notices"] if notice.startswith(sentence.split(":")[0])]
    assert re.search(sentence, " ".join(report["notices"]))
    assert sentence.split(":")[0] in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("base_name", "warned"),
    [("org/other", True), ("org/Tiny/", False), ("org/base", False), ("/models/{folder}", False), (7, False)],
)
@pytest.mark.parametrize("writer", [writers.medusa, writers.speculators])
def test_a_config_that_names_another_base_gives_a_warning(base_name, warned, writer, tmp_path, tiny_base):
    config, tensors = writer()
    base_name = base_name.format(folder=tiny_base.name) if isinstance(base_name, str) else base_name
    if writer is writers.medusa:
        config["base_model_name_or_path"] = base_name
    else:
        config["speculators_config"]["verifier"]["name_or_path"] = base_name
    folder = writers.write(tmp_path / "published", (config, tensors))
    (tmp_path / "scratch").mkdir()
    report = read_here(folder, tiny_base, tmp_path / "scratch", base_hub_id="org/base")
    expected = [f"published/config.json names the base model {base_name}, but tiny is selected"] if warned else []
    assert [notice.partition(":")[0] for notice in report["notices"]] == expected


def layers_of(folder: Path) -> list[int]:
    return json.loads((folder / "config.json").read_text())["aux_layers"]


@pytest.mark.parametrize(
    "ids, layout, expected",
    [
        (None, "", [1, 1, 0]),
        ([1, 1, 0], "", [1, 1, 0]),
        ([2, 2, 1], "", [1, 1, 0]),
        ([0, 2, 3], "", [0, 2, 3]),
        ([1, 3, 4], "vllm-eagle3", [0, 2, 3]),
        ([2, 2, 1], "eagle3", [2, 2, 1]),
    ],
    ids=["absent", "outputs", "inputs", "own outputs", "own inputs", "said"],
)
def test_layer_ids_are_read_as_their_project_counts_them(ids, layout, expected, imported):
    """The tiny base has four layers: SGLang's default names outputs 1, 1, 0 and vLLM's inputs 2, 2, 1."""
    changes = {} if ids is None else {"eagle_config": {IDS: ids}}
    folder, report = imported(with_config(small(), **changes), layout=layout)
    assert layers_of(folder) == expected
    guessed = [notice for notice in report["notices"] if "were read as inputs of layers" in notice]
    assert len(guessed) == (ids == [2, 2, 1] and not layout)


def test_speculators_count_inputs(imported):
    folder, _ = imported(with_config(writers.speculators(draft_ids=DRAFT_IDS), **{IDS: [1, 3, 4]}))
    assert layers_of(folder) == [0, 2, 3]


def test_the_tokenizer_of_another_model_is_refused(imported, tmp_path, tiny_base):
    folder = tmp_path / "published"
    folder.mkdir()
    tokenizer = json.loads((tiny_base / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    imported(small())  # the tokenizer of the base, written again
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(
        Unsupported, match="published/tokenizer.json: differs from the tokenizer of tiny: the id of 'a'"
    ):
        imported(small())


def test_a_small_model_becomes_a_draft_untrained_and_another_tokenizer_is_refused(tmp_path, tiny_base, base):
    folder = make_tiny_base(tmp_path / "published", seed=5, hidden_size=16, num_hidden_layers=2)
    report = read_here(folder, tiny_base, tmp_path)
    assert (report["format"], report["method"]) == ("model", "draft")
    draft, ids = load_draft(tmp_path / "draft", base), torch.arange(9)[None]
    assert torch.equal(draft(ids).logits, load_base(folder).model(ids).logits)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"]["a"], tokenizer["model"]["vocab"]["b"] = 65, 64
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(Unsupported, match="differs from the tokenizer"):
        read_here(folder, tiny_base, tmp_path)


@pytest.mark.integration
@pytest.mark.parametrize("files", [1, 2])
def test_a_small_model_in_pickles_is_read_in_the_limited_child(files, shared_child, tmp_path, tiny_base, base):
    """Older repositories have pickles, in one file or several. The draft computes the logits of the original model."""
    folder = make_tiny_base(tmp_path / "published", seed=5, hidden_size=16, num_hidden_layers=2)
    tensors, original = load_file(folder / "model.safetensors"), load_base(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for number in range(files):
        name = "pytorch_model.bin" if files == 1 else f"pytorch_model-{number + 1:05}-of-{files:05}.bin"
        torch.save({name: tensors[name] for name in names[number::files]}, folder / name)
    target_base = TargetBase(tiny_base, "tiny", "b" * 64)
    report = import_draft("folder", str(folder), target_base, tmp_path / "made" / "attempt-1", SilentReporter())
    assert (report["format"], report["method"]) == ("model", "draft")
    draft, ids = load_draft(tmp_path / "made" / "attempt-1", base), torch.arange(9)[None]
    assert torch.equal(draft(ids).logits, original.model(ids).logits)
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["attempt-1"]


@pytest.mark.integration
def test_a_small_model_in_a_damaged_pickle_is_refused_by_the_name_of_its_folder(shared_child, tmp_path, tiny_base):
    folder = make_tiny_base(tmp_path / "published", seed=5, hidden_size=16, num_hidden_layers=2)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    del tensors["model.layers.1.mlp.up_proj.weight"]
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(BadInput, match="^published: .*model.layers.1.mlp.up_proj.weight") as error:
        import_draft(
            "folder", str(folder), TargetBase(tiny_base, "tiny"), tmp_path / "made" / "attempt-1", SilentReporter()
        )
    assert str(tmp_path) not in str(error.value) and not (tmp_path / "made" / "attempt-1").exists()


def test_a_base_that_was_tuned_with_its_heads_is_left_in_the_file(imported, base, tiny_base):
    config, heads = writers.medusa(prefix="medusa_head.")
    folder, report = imported((config, heads | load_file(tiny_base / "model.safetensors")))
    assert "Medusa-2" in report["notices"][0] and report["format"] == "medusa"
