"""Damaged exports: the validation fails with a sentence that names the key."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from formats import find_format
from formats.checkpoint import CheckpointFiles
from formats.export import build_export, validate
from formats.facts import CardFacts
from formats.proof import compare_drafts
from models.checkpoints import load_draft
from speculoos.errors import Unsupported
from speculoos.reporting import SilentReporter

KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def failures_after(base, checkpoint, tmp_path):
    """(kind, format, change, dtype) → the sentences of the failed checks after `change(config, tensors)`."""

    def failures(kind, name, change, dtype="float32"):
        target = tmp_path / "out"
        shutil.rmtree(target, ignore_errors=True)
        build_export(checkpoint(kind, dtype), base, name, target)
        rewrite(target, change)
        files = CheckpointFiles.read(checkpoint(kind, dtype), base.path)
        facts = CardFacts(base.path.name, str(base.path))
        report = validate(target, find_format(name), files, base, facts, SilentReporter())
        assert not report.passed
        return " ".join(report.failures)

    return failures


def rewrite(target, change):
    weights = next(target.glob("*.safetensors"))
    config, tensors = json.loads((target / "config.json").read_text()), load_file(weights)
    change(config, tensors)
    (target / "config.json").write_text(json.dumps(config))
    save_file({name: value.contiguous() for name, value in tensors.items()}, weights)


@pytest.mark.parametrize("name", ["vllm", "trtllm"])
def test_a_missing_map_of_the_vocabulary(name, failures_after):
    assert "d2t is missing" in failures_after("eagle3-small", name, lambda _, tensors: tensors.pop("d2t"))


@pytest.mark.parametrize(("kind", "name"), [("eagle", "sglang"), ("eagle3", "vllm")])
def test_tied_embeddings(kind, name, failures_after):
    failures = failures_after(kind, name, lambda config, _: config.update(tie_word_embeddings=True))
    assert "config.json: tie_word_embeddings is true" in failures


def test_a_transposed_matrix(failures_after):
    def turned(_, tensors):
        tensors["fc.weight"] = tensors["fc.weight"].T

    assert "the export cannot be read" in failures_after("eagle3", "vllm", turned)


def test_bias_that_vllm_would_drop(failures_after):
    assert "largest difference" in failures_after("medusa", "vllm", lambda config, _: config.pop("medusa_fc_bias"))


def test_a_changed_weight(failures_after):
    """All names and shapes are right, so no table shows it."""

    def halved(_, tensors):
        tensors["layers.0.self_attn.k_proj.weight"] *= 0.5

    assert "logits: largest difference" in failures_after("eagle3", "vllm", halved)


def test_two_tokens_of_the_map_exchanged(failures_after):
    """d2t has the right shape and the logits are the same; the tokens are not."""

    def moved(_, tensors):
        tensors["d2t"] += 1

    assert "tokens: from position" in failures_after("eagle3-small", "trtllm", moved)


def test_a_bias_that_should_be_zero(failures_after):
    assert "logits" in failures_after("eagle", "sglang", lambda _, tensors: tensors["fc.bias"].fill_(0.5))


def test_a_pickle_that_differs_from_the_safetensors(failures_after):
    def doubled(_, tensors):
        tensors["0.0.linear.bias"] *= 2

    assert "medusa_lm_head.pt: 0.0.linear.bias differs" in failures_after("medusa", "trtllm", doubled)


@pytest.mark.parametrize("name", ["vllm", "speculators", "sglang", "modelopt"])
def test_the_reader_alone_sees_layers_that_are_off_by_one(name, base, checkpoint, tmp_path):
    """Without any table: the network that this server would build gives other logits."""
    build_export(checkpoint("eagle3-small"), base, name, tmp_path / "out")
    files = CheckpointFiles.read(checkpoint("eagle3-small"), base.path)
    draft = load_draft(files.path, base)

    def checks():
        return {
            c.name: c.passed
            for c in compare_drafts(
                draft, find_format(name).load("reader", "eagle3")(tmp_path / "out", files), base
            ).checks()
        }

    assert checks() == {"logits": True, "tokens": True}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    section = config if KEY in config else config["eagle_config"]
    section[KEY] = [layer + 1 for layer in section[KEY]]
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    assert not checks()["logits"]


def test_a_reader_that_ignores_the_norm_before_the_residual_gives_other_logits(base, checkpoint, tmp_path):
    """This is why such a draft is not exported for SGLang."""
    build_export(checkpoint("eagle3-residual"), base, "vllm", tmp_path / "out")
    files = CheckpointFiles.read(checkpoint("eagle3-residual"), base.path)
    reader = find_format("sglang").load("reader", "eagle3")(tmp_path / "out", files)
    assert not compare_drafts(load_draft(files.path, base), reader, base).checks()[0].passed


def test_a_failed_export_is_written_only_with_force(base, checkpoint, tmp_path, monkeypatch):
    """With a faulty writer nothing is written, or with `force` an export that says what is wrong."""
    from formats import writers

    monkeypatch.setattr(writers, "_layer_ids", lambda checkpoint, added: {KEY: [5, 6, 7]})  # the fault
    with pytest.raises(Unsupported, match="logits"):
        build_export(checkpoint("eagle3-small"), base, "vllm", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    report = build_export(checkpoint("eagle3-small"), base, "vllm", tmp_path / "out", force=True)
    assert not report.passed and "failed its validation" in (tmp_path / "out" / "README.md").read_text()
    assert json.loads((tmp_path / "out" / "validation.json").read_text())["passed"] is False
