"""A damaged state is detected, reported, and skipped in favour of an older intact one."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from models.methods import train_config
from speculoos.checksums import CHECKSUM_FILE
from tests.tools.damage import cut, flip
from tests.training.test_loop import Notebook, config
from training.loop import train
from training.resume_points import (
    DRAFT,
    OPTIMIZER,
    TRAINER_STATE,
    all_resume_points,
    latest_resume_point,
    latest_undamaged_resume_point,
    resume_point_damage,
)
from workers.child.work.train import with_stored_defaults

SETTINGS = {"max_steps": 8, "eval_every": 4, "save_every": 2, "keep_last": 3}


@pytest.fixture(scope="module")
def straight(tiny_base, dataset, tmp_path_factory):
    """A run's folder with states 4, 6 and 8, and its draft."""
    out = tmp_path_factory.mktemp("straight") / "out"
    result = train(config(**SETTINGS), tiny_base, dataset, out)
    assert [p.name for p in all_resume_points(out)] == ["state-4", "state-6", "state-8"]
    return out, load_file(result.folder / "model.safetensors")


@pytest.fixture
def states(straight, tmp_path):
    return shutil.copytree(straight[0], tmp_path / "run")


def remove_sums(state):
    """Remove the sums; states of earlier versions had none."""
    (state / CHECKSUM_FILE).unlink()


def break_trainer_state(state):
    (state / CHECKSUM_FILE).unlink()
    (state / TRAINER_STATE).write_text("[1]")


DAMAGES = {
    "draft flipped": lambda state: flip(state / DRAFT),
    "optimizer flipped": lambda state: flip(state / OPTIMIZER, 1),
    "draft cut": lambda state: cut(state / DRAFT),
    "optimizer gone": lambda state: (state / OPTIMIZER).unlink(),
    "facts cut": lambda state: cut(state / TRAINER_STATE),
    "old, draft cut": lambda state: (remove_sums(state), cut(state / DRAFT)),
    "old, optimizer cut": lambda state: (remove_sums(state), cut(state / OPTIMIZER, 0.9)),
    "old, facts no object": break_trainer_state,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_state_is_reported_and_the_one_before_it_used(damage, states):
    messages = []
    assert [resume_point_damage(state) for state in all_resume_points(states)] == ["", "", ""]
    damage(states / "state-8")
    assert latest_undamaged_resume_point([states], messages.append) == states / "state-6"
    (message,) = messages
    assert "run/state-8 is damaged (" in message and "skipped" in message


def test_states_of_an_earlier_version_are_intact_without_sums(states):
    remove_sums(states / "state-8")
    assert latest_undamaged_resume_point([states], pytest.fail) == states / "state-8"


def test_a_run_resumes_from_the_newest_intact_state_and_ends_the_same(straight, states, tiny_base, dataset, tmp_path):
    flip(states / "state-8" / OPTIMIZER)
    cut(states / "state-6" / DRAFT)
    notes = Notebook()
    result = train(config(**SETTINGS), tiny_base, dataset, tmp_path / "next", states, notes)
    assert [line for line in notes.lines if "damaged" in line] == [
        "run/state-8 is damaged (optimizer.safetensors is damaged (its sha256 differs from SHA256SUMS)), "
        "so it is skipped.",
        "run/state-6 is damaged (draft.safetensors is damaged (its sha256 differs from SHA256SUMS)), so it is skipped.",
    ]
    assert "Resumed from step 4." in notes.lines
    weights = load_file(result.folder / "model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in straight[1].items())


def test_with_no_intact_state_the_run_starts_again_and_reports_it(straight, states, tiny_base, dataset, tmp_path):
    for state in all_resume_points(states):
        cut(state / DRAFT)
    notes = Notebook()
    result = train(config(**SETTINGS), tiny_base, dataset, states, states, notes)
    assert "No intact training state is left, so the training starts from the beginning." in notes.lines
    weights = load_file(result.folder / "model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in straight[1].items())
    assert [resume_point_damage(state) for state in all_resume_points(states)] == ["", "", ""]


def test_a_damaged_best_draft_is_left_out(states, tiny_base, dataset, tmp_path):
    shutil.rmtree(states / "state-8")
    shutil.rmtree(states / "state-6")
    best_step = json.loads((states / "state-4" / TRAINER_STATE).read_text())["best"]["step"]
    best = states / "best" / "model.safetensors"
    flip(best)
    notes = Notebook()
    result = train(config(**SETTINGS), tiny_base, dataset, tmp_path / "next", states, notes)
    assert best_step == 4 and any("The best draft so far is left out" in line for line in notes.lines)
    assert result.metrics["best_step"] == 8


def test_a_single_state_may_be_named(states):
    assert latest_undamaged_resume_point([states / "state-4"], pytest.fail) == states / "state-4"
    assert latest_undamaged_resume_point([None, states.parent / "nothing", states], pytest.fail) == latest_resume_point(
        states
    )


def test_defaults_that_depend_on_data_or_machine_are_taken_from_the_state():
    """An older version trained with a float32 base on a GPU too."""
    stored = {"batch_tokens": 512, "base_dtype": "float32"}
    resumed = with_stored_defaults(train_config("eagle"), stored)
    assert (resumed.batch_tokens, resumed.base_dtype) == (512, "float32")
    chosen = train_config("eagle", batch_tokens=64, base_dtype="bfloat16")
    assert with_stored_defaults(chosen, stored) == chosen
