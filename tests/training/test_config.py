"""Settings are checked when they are created, and can be shown in a form without torch."""

import subprocess
import sys

import pytest

from models.methods import METHODS, SETTINGS, train_config
from models.methods.recipes import config_for, list_recipes, load_recipe, read_recipe
from models.methods.settings import TrainConfig
from speculoos.errors import BadInput, NotFound
from training.setup import lr_factor


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "magic"},
        {"lr": 0},
        {"lr": "fast"},
        {"lr": float("nan")},
        {"epochs": 0},
        {"medusa_num_heads": 0},
        {"medusa_num_heads": 2.5},
        {"medusa_num_layers": True},
        {"schedule": "zigzag"},
        {"draft_vocab_size": 8, "draft_vocab_coverage": 0.9},
        {"aux_layers": "one", "method": "eagle3"},
        {"norm_before_fc": True, "fc_norm": True, "method": "eagle3"},
        {"medusa_tie_lm_head": "maybe"},
        {"held_out": 1.0},
    ],
)
def test_an_invalid_value_names_its_field(settings):
    with pytest.raises(BadInput, match=next(iter(settings))):
        train_config(**settings)


def test_typed_settings_are_read_as_their_fields_type():
    config = train_config(lr="1e-4", medusa_num_heads="3", medusa_tie_lm_head="true", epochs=2)
    assert (config.lr, config.medusa_num_heads, config.medusa_tie_lm_head) == (1e-4, 3, True)
    assert train_config(**config.to_json()) == config
    assert train_config("eagle3", aux_layers="1, 14 26").aux_layers == (1, 14, 26)
    with pytest.raises(BadInput, match="leraning_rate"):
        train_config(leraning_rate=1)


def test_every_setting_has_a_help_text():
    assert set(SETTINGS) >= set(TrainConfig.model_fields) - {"method"} and all(s.help for s in SETTINGS.values())
    assert SETTINGS["medusa_num_heads"].methods == ("medusa",)


@pytest.mark.integration
def test_settings_and_recipes_import_without_torch():
    code = "import models.methods, models.methods.recipes, training.resume_points, models.checkpoints, sys\n"
    code += "from models.methods.recipes import list_recipes; list_recipes()\n"
    code += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_method_has_three_recipes_that_name_their_source():
    names = {r.name for r in list_recipes()}
    assert names >= {f"{m}-{s}" for m in METHODS for s in ("smoke", "standard", "paper")}
    assert all(r.source and r.about for r in list_recipes())
    assert {r.name: r.config().save_dtype for r in list_recipes()} == dict.fromkeys(names, "bfloat16")
    assert {r.method for r in list_recipes("eagle")} == {"eagle"}
    assert read_recipe("eagle3-paper").config().ttt_steps == 7
    assert load_recipe("medusa-paper")["medusa_loss"] == "sum"


def test_changes_go_over_the_recipe():
    changes = {"lr": "0.5", "epochs": "3"}
    assert read_recipe("medusa-standard").config(changes).lr == 0.5
    assert config_for("medusa", "medusa-standard", changes).epochs == 3
    with pytest.raises(BadInput, match="is for medusa"):
        config_for("eagle", "medusa-standard", {})


def test_a_broken_recipe_is_one_sentence(tmp_path):
    with pytest.raises(NotFound, match="quickstart"):
        read_recipe("no-such")
    for name, text in {
        "a": "method: [",
        "b": "- 1",
        "c": "method: medusa\nsettings: {lr: -1}",
        "d": "metod: x",
    }.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        with pytest.raises(BadInput):
            read_recipe(str(tmp_path / f"{name}.yaml"))


def test_the_learning_rate_rises_then_falls():
    assert [lr_factor(p, 0.1, "cosine") for p in (0.0, 0.05, 0.1, 0.55, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert lr_factor(0.55, 0.1, "linear") == pytest.approx(0.5)
    assert lr_factor(0.9, 0.0, "constant") == 1


@pytest.mark.parametrize(("tokens", "batch"), [(0, 256), (12_000, 256), (16_384, 512), (70_000, 2048), (10**7, 4096)])
def test_the_default_batch_size_follows_the_data(tokens, batch):
    assert train_config("medusa").for_tokens(tokens).batch_tokens == batch
    assert train_config("medusa", batch_tokens=100).for_tokens(tokens).batch_tokens == 100


@pytest.mark.parametrize(
    ("steps", "eval_every", "save_every"),
    [(12, 1, 10), (400, 20, 40), (5_000, 250, 100), (10**6, 500, 100), (0, 50, 50)],
)
def test_default_evaluations_and_saves_follow_the_length(steps, eval_every, save_every):
    config = train_config("medusa").for_steps(steps)
    assert (config.eval_every, config.save_every) == (eval_every, save_every)
    explicit = train_config("medusa", eval_every=0, save_every=7).for_steps(steps)
    assert (explicit.eval_every, explicit.save_every) == (0, 7)


@pytest.mark.parametrize(("held_batches", "eval_every"), [(0.1, 3), (1.0, 4), (2.0, 8), (100.0, 15)])
def test_evaluating_takes_less_than_training(held_batches, eval_every):
    """By default sixty steps have twenty evaluations. Each takes `held_batches` batches; together they take at most a
    quarter of the training's, but there are at least four evaluations."""
    config = train_config("medusa")
    assert config.for_steps(60, held_batches).eval_every == eval_every
    assert config.for_steps(0, held_batches).eval_every == 50
    assert train_config("medusa", eval_every=1).for_steps(60, held_batches).eval_every == 1


def test_an_empty_text_leaves_a_number_to_the_data():
    assert train_config("medusa", batch_tokens="", eval_every="").batch_tokens is None
    with pytest.raises(BadInput, match="batch_tokens: expected a whole number, or nothing"):
        train_config("medusa", batch_tokens="many")


def test_every_setting_has_a_label_of_its_own():
    for method in METHODS:
        labels = [s.label for s in SETTINGS.values() if not s.methods or method in s.methods]
        assert all(labels) and len(labels) == len(set(labels)), method
        assert not any("_" in label for label in labels)
