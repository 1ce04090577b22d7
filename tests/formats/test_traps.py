"""Exports that somebody spoilt: each is caught, with a sentence that names the key."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from formats import find_format, streamed
from formats.checkpoint import CheckpointFiles
from formats.export import build_export
from formats.facts import CardFacts
from formats.proof import compare_drafts
from formats.validate import validate
from speculoos.errors import Unsupported

KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def spoilt(base, checkpoint, tmp_path):
    """(kind, format, change, dtype) → sentences of the checks that did not pass. `change` gets config and tensors."""

    def failures(kind, name, change, dtype="float32"):
        target = tmp_path / "out"
        shutil.rmtree(target, ignore_errors=True)
        build_export(checkpoint(kind, dtype), base, name, target)
        rewrite(target, change)
        found = CheckpointFiles.read(checkpoint(kind, dtype), base.path)
        report = validate(target, name, found, base, CardFacts(base.path.name, str(base.path)))
        assert not report.passed
        return " ".join(report.failures)

    return failures


def rewrite(target, change):
    weights = next(target.glob("*.safetensors"))
    config, tensors = json.loads((target / "config.json").read_text()), load_file(weights)
    change(config, tensors)
    (target / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, weights)


@pytest.mark.parametrize("name", ["vllm", "speculators", "sglang", "modelopt"])
def test_layer_ids_of_another_server(name, spoilt):
    def shifted(config, _):
        place = config if KEY in config else config["eagle_config"]
        place[KEY] = [layer + 1 for layer in place[KEY]]

    assert KEY in spoilt("eagle3-small", name, shifted)


def test_layer_ids_that_a_base_would_have_by_itself(spoilt):
    assert KEY in spoilt("eagle3-small", "sglang", lambda config, _: config["eagle_config"].pop(KEY))


@pytest.mark.parametrize("name", ["vllm", "speculators", "sglang", "trtllm", "modelopt"])
def test_a_missing_map_of_the_vocabulary(name, spoilt):
    assert "d2t is missing" in spoilt("eagle3-small", name, lambda _, tensors: tensors.pop("d2t"))


@pytest.mark.parametrize(("kind", "name"), [("eagle", "sglang"), ("eagle3", "sglang"), ("eagle3", "vllm")])
def test_tied_embeddings(kind, name, spoilt):
    said = spoilt(kind, name, lambda config, _: config.update(tie_word_embeddings=True))
    assert "config.json: tie_word_embeddings: expected False, found True" in said


def test_a_transposed_matrix(spoilt):
    def turned(_, tensors):
        tensors["fc.weight"] = tensors["fc.weight"].T

    said = spoilt("eagle3", "vllm", turned)
    assert "fc.weight: expected the shape [32, 96], found [96, 32]. It is transposed." in said


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("vllm", "num_heads"),
        ("trtllm", "num_medusa_heads"),
        ("trtllm", "medusa_num_heads"),
        ("medusa", "medusa_num_heads"),
    ],
)
def test_a_wrong_number_of_heads(name, key, spoilt):
    assert f"config.json: {key}: expected 3, found 5" in spoilt(
        "medusa", name, lambda config, _: config.update({key: 5})
    )


def test_a_key_that_vllm_takes_for_the_number_of_heads(spoilt):
    said = spoilt("medusa", "vllm", lambda config, _: config.update(num_attention_heads=4))
    assert "num_attention_heads does not belong here" in said


@pytest.mark.parametrize("key", ["torch_dtype", "dtype"])
def test_a_type_that_is_not_that_of_the_tensors(key, spoilt):
    said = spoilt("eagle3", "vllm", lambda config, _: config.update({key: "float32"}), "bfloat16")
    assert f"{key} says float32, the tensors are bfloat16" in said


def test_a_key_that_hides_the_heads_from_tgi(spoilt):
    said = spoilt("medusa", "medusa", lambda config, _: config.update(architectures=["MedusaModel"]))
    assert "architectures does not belong here (TGI would not recognise the folder as Medusa heads)" in said


def test_bias_that_vllm_would_drop(spoilt):
    assert "medusa_fc_bias" in spoilt("medusa", "vllm", lambda config, _: config.pop("medusa_fc_bias"))


def test_embeddings_that_were_never_trained(spoilt):
    def added(_, tensors):
        tensors["embed_tokens.weight"] = torch.zeros(320, 32)

    assert "embed_tokens.weight does not belong here" in spoilt("eagle3", "vllm", added)


def test_a_changed_weight(spoilt):
    """What no table sees: all names and shapes are right."""

    def halved(_, tensors):
        tensors["layers.0.self_attn.k_proj.weight"] *= 0.5

    assert "logits: largest difference" in spoilt("eagle3", "vllm", halved)


def test_two_tokens_of_the_map_exchanged(spoilt):
    """d2t has the right shape and the logits are the same; the tokens are not."""

    def moved(_, tensors):
        tensors["d2t"] += 1

    assert "tokens: from position" in spoilt("eagle3-small", "trtllm", moved)


def test_a_bias_that_should_be_zero(spoilt):
    assert "logits" in spoilt("eagle", "sglang", lambda _, tensors: tensors["fc.bias"].fill_(0.5))


def test_a_pickle_that_differs_from_the_safetensors(spoilt):
    def doubled(_, tensors):
        tensors["0.0.linear.bias"] *= 2

    assert "medusa_lm_head.pt: 0.0.linear.bias differs" in spoilt("medusa", "trtllm", doubled)


def test_the_tokenizer_of_another_model(base, checkpoint, tmp_path):
    from models.tiny import make_tiny_base, tiny_tokenizer

    other = make_tiny_base(tmp_path / "other", num_hidden_layers=8)
    tiny_tokenizer(300).save_pretrained(other)
    folder, found = checkpoint("draft"), CheckpointFiles.read(checkpoint("draft"), base.path)
    build_export(folder, base, "huggingface", tmp_path / "out")
    shutil.copyfile(other / "tokenizer.json", tmp_path / "out" / "tokenizer.json")
    report = validate(tmp_path / "out", "huggingface", found, base, CardFacts(base.path.name, str(base.path)))
    assert "tokenizer: tokenizer.json or its chat template is not the base model's" in report.failures[0]

    build_export(checkpoint("eagle3"), base, "vllm", tmp_path / "head")
    found = CheckpointFiles.read(checkpoint("eagle3"), other)
    report = validate(tmp_path / "head", "vllm", found, base, CardFacts(other.name, str(other)))
    assert report.failures[0].startswith("tokenizer: tokenizer_sha256: exported for")


@pytest.mark.parametrize("name", ["vllm", "speculators", "sglang", "modelopt"])
def test_the_reader_alone_sees_layers_that_are_off_by_one(name, base, checkpoint, tmp_path):
    """Without any table: the network that this server would build gives other logits."""
    build_export(checkpoint("eagle3-small"), base, name, tmp_path / "out")
    found = CheckpointFiles.read(checkpoint("eagle3-small"), base.path)
    draft = streamed.streamed_draft(found.path, base)

    def checks():
        return {
            c.name: c.passed
            for c in compare_drafts(
                draft, find_format(name).load("reader", "eagle3")(tmp_path / "out", found), base
            ).checks()
        }

    assert checks() == {"logits": True, "tokens": True}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    place = config if KEY in config else config["eagle_config"]
    place[KEY] = [layer + 1 for layer in place[KEY]]
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    assert not checks()["logits"]


def test_a_reader_that_ignores_the_norm_before_the_residual_gives_other_logits(base, checkpoint, tmp_path):
    """Why such a draft is not written for SGLang."""
    build_export(checkpoint("eagle3-residual"), base, "vllm", tmp_path / "out")
    found = CheckpointFiles.read(checkpoint("eagle3-residual"), base.path)
    reader = find_format("sglang").load("reader", "eagle3")(tmp_path / "out", found)
    assert not compare_drafts(streamed.streamed_draft(found.path, base), reader, base).checks()[0].passed


def test_what_fails_is_not_given_away_unless_it_is_said(base, checkpoint, tmp_path, monkeypatch):
    """A writer with a fault: nothing is written, or, forced, an export that says what is wrong with it."""
    from formats.writers import eagle3

    monkeypatch.setattr(eagle3, "_ids", lambda checkpoint, added: {KEY: [5, 6, 7]})  # the fault
    with pytest.raises(Unsupported, match=KEY):
        build_export(checkpoint("eagle3-small"), base, "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = build_export(checkpoint("eagle3-small"), base, "vllm", tmp_path / "out", force=True)
    assert not report.passed and "failed its validation" in (tmp_path / "out" / "README.md").read_text()
    assert json.loads((tmp_path / "out" / "validation.json").read_text())["passed"] is False
