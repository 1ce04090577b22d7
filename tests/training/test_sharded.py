"""The loop under FSDP2 (`fully_shard` over gloo): two processes with sharded parameters equal two with whole ones.

On a processor the loop refuses FSDP; `DEVICES` turns that off here, and nothing else. Two processes, started once, do
all runs one after the other.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from models.checkpoints import load_draft, verify_sums
from models.eagle3 import ScaledLinear
from models.methods import train_config
from speculoos.errors import BadInput, Cancelled, Unsupported
from tests.tools.ports import free_ports
from tests.training.test_loop import SHORT, Notebook
from training import sharding
from training.loop import train
from training.method import make_method

LAUNCHED = {"FSDP_VERSION": "2", "FSDP_CPU_RAM_EFFICIENT_LOADING": "true", "FSDP_OFFLOAD_PARAMS": "false"}
"""What `accelerate launch --use_fsdp --fsdp_version 2` sets besides ACCELERATE_USE_FSDP."""

WORKER = """
import json, os, sys, torch
from speculoos.errors import Cancelled
from training import loop, sharding
from models.methods import train_config
from tests.training.test_loop import Notebook

torch.set_num_threads(1)
sharding.DEVICES = ("cuda", "cpu")
split = 0
def counting(method, device, shard=sharding.shard):
    global split
    split += 1
    shard(method, device)
    assert all(p.to_local().numel() < p.numel() for p in method.parameters() if len(p) > 1)
    assert "ACCELERATE_USE_FSDP" not in os.environ
loop.prepare.__globals__["shard"] = counting
base, data, runs = json.loads(sys.argv[1])
for run in runs:
    os.environ["ACCELERATE_USE_FSDP"] = str(run["sharded"]).lower()
    notes = Notebook(run["stop_after"])
    notes.samples, before = [], split
    notes.sample = lambda step, record: notes.samples.append(record["text"])
    try:
        loop.train(train_config(**run["settings"]), base, data, run["out"], run["resume"], notes)
        assert run["stop_after"] is None
    except Cancelled:
        assert run["stop_after"]
    assert split - before == run["sharded"] and "ACCELERATE_USE_FSDP" in os.environ
    if os.environ["RANK"] == "0":
        json.dump([notes.values, notes.samples], open(run["out"] + ".json", "w"))
"""

METHODS = {
    "medusa": {"medusa_num_heads": 2, "medusa_num_layers": 1},
    "eagle": {},
    "eagle3": {"draft_vocab_size": 100},
    "draft": {"draft_num_layers": 2},
}
ANEW = "eagle3"
"""Of this one a run that has nothing left to do is resumed too."""
STEPS, HALF = 4, 2
COMPARED = ("train/loss", "train/grad_norm", "eval/tau", "eval/tau_tree")


def settings(method, **changes):
    fixed = {**SHORT, "max_steps": STEPS, "accumulate": 2, "eval_every": HALF, "save_every": HALF, "samples": 1}
    return {"method": method, **METHODS[method], **fixed, **changes}


def launch(base, data, runs):
    """Do `runs` one after the other in two processes."""
    (port,) = free_ports(1)
    children = []
    for rank in range(2):
        env = {**os.environ, **LAUNCHED, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "WORLD_SIZE": "2"}
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = json.dumps([str(base), str(data), runs])
        children.append(subprocess.Popen([sys.executable, "-c", WORKER, arguments], env=env))
    assert [child.wait(timeout=300) for child in children] == [0, 0]


@pytest.fixture(scope="module")
def runs(tiny_base, dataset, tmp_path_factory):
    """The folder in which <method>-<run> lie: `whole` (DDP), `sharded`, `stopped` and `resumed` (sharded), `over`
    (resumed when all was done, of one method), `alone` (one process, stopped) and `alone-resumed` (sharded)."""
    folder, planned = tmp_path_factory.mktemp("runs"), []

    def plan(method, name, sharded=True, stop_after=None, resume=None, **changes):
        out = {"out": str(folder / f"{method}-{name}"), "resume": resume and str(folder / f"{method}-{resume}")}
        chosen = settings(method, **changes)
        planned.append({"settings": chosen, "sharded": sharded, "stop_after": stop_after, **out})

    for method in METHODS:
        plan(method, "whole", sharded=False)
        plan(method, "sharded")
        plan(method, "stopped", stop_after=HALF)
        plan(method, "resumed", resume="stopped")
        if method == ANEW:
            plan(method, "over", resume="sharded")
        with pytest.raises(Cancelled):
            alone = train_config(**settings(method, accumulate=4))
            train(alone, tiny_base, dataset, folder / f"{method}-alone", reporter=Notebook(HALF))
        plan(method, "alone-resumed", resume="alone")
    launch(tiny_base, dataset, planned)
    return folder


def read(folder):
    """Reported values by step, samples, and the tensors of the checkpoint and the last state, where there are any."""
    values, samples = json.loads(folder.with_name(folder.name + ".json").read_text())
    return values, samples, tensors_in(folder)


def tensors_in(folder):
    files = [folder / "final" / "model.safetensors", *(folder / f"state-{STEPS}").glob("*.safetensors")]
    return {f"{file.name} {name}": t for file in files if file.exists() for name, t in load_file(file).items()}


def check_close(got, expected):
    """Curves from the first step of `got` on, and final weights."""
    (values, _, weights), (expected_values, _, expected_weights) = got, expected
    assert values and all(int(step) <= STEPS for step in values)
    for step, row in values.items():
        compared = {name: expected_values[step][name] for name in row if name in COMPARED}
        assert {name: row[name] for name in compared} == pytest.approx(compared, rel=1e-5), step
    assert weights.keys() == expected_weights.keys()
    for name, weight in weights.items():
        assert torch.allclose(weight, expected_weights[name], rtol=1e-5, atol=1e-6), name


@pytest.mark.parametrize("method", METHODS)
def test_sharded_parameters_train_as_whole_ones_do(method, runs, base):
    whole, sharded = read(runs / f"{method}-whole"), read(runs / f"{method}-sharded")
    assert list(sharded[0]) == list(whole[0]) == [str(step) for step in range(1, STEPS + 1)]
    check_close(sharded, whole)
    assert sharded[1] == whole[1] and len(whole[1]) == 2 and whole[1][0]  # samples
    verify_sums(runs / f"{method}-sharded" / "final")
    draft = load_draft(runs / f"{method}-sharded" / "final", base)
    assert draft.method == method and not list((runs / f"{method}-sharded").glob(".*"))


@pytest.mark.parametrize("method", METHODS)
def test_a_sharded_run_stopped_and_resumed_equals_one_that_was_not(method, runs):
    straight, first, second = (read(runs / f"{method}-{name}") for name in ("sharded", "stopped", "resumed"))
    for step, row in {**first[0], **second[0]}.items():
        assert {n: v for n, v in row.items() if n in COMPARED} == {
            n: v for n, v in straight[0][step].items() if n in COMPARED
        }
    assert list(second[0]) == [str(step) for step in range(HALF + 1, STEPS + 1)]
    assert second[2].keys() == straight[2].keys()
    assert all(torch.equal(weight, straight[2][name]) for name, weight in second[2].items())


def test_a_sharded_run_with_nothing_left_to_do_writes_the_same_draft(runs):
    straight, over = (read(runs / f"{ANEW}-{name}")[2] for name in ("sharded", "over"))
    assert straight.keys() > over.keys() > set()
    assert all(torch.equal(weight, straight[name]) for name, weight in over.items())


@pytest.mark.parametrize("method", METHODS)
def test_states_hold_whole_tensors_for_any_number_of_processes(method, runs, tiny_base, dataset, tmp_path):
    """Stopped sharded over two processes, gone on with in one that accumulates twice as much; and the other way."""
    straight, notes = read(runs / f"{method}-sharded"), Notebook()
    alone = train_config(**settings(method, accumulate=4))
    train(alone, tiny_base, dataset, tmp_path / "out", runs / f"{method}-stopped", notes)
    values = {str(step): row for step, row in notes.values.items()}
    check_close((values, [], tensors_in(tmp_path / "out")), straight)
    check_close(read(runs / f"{method}-alone-resumed"), straight)
    states = [runs / f"{method}-{name}" / f"state-{HALF}" for name in ("stopped", "alone")]
    for file in ("draft.safetensors", "optimizer.safetensors"):
        ours, theirs = (load_file(state / file) for state in states)
        assert {n: (t.shape, t.dtype) for n, t in ours.items()} == {n: (t.shape, t.dtype) for n, t in theirs.items()}


def test_eagle3_is_sharded_with_its_scaled_inputs(base, conversations):
    fc = make_method(train_config(**settings("eagle3")), base, conversations).draft.fc
    assert isinstance(fc, ScaledLinear) and len(fc.scale.unique()) > 1


def test_a_state_of_other_batches_per_step_is_refused(runs, tiny_base, dataset, tmp_path):
    config = train_config(**settings("medusa", accumulate=2))
    with pytest.raises(BadInput, match="accumulate: .* 2 batches in each of 2 processes, not 2 in each of 1"):
        train(config, tiny_base, dataset, tmp_path, runs / "medusa-stopped")


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"FSDP_VERSION": "2"}, "FSDP is not supported on a cpu device"),
        ({"FSDP_VERSION": "1"}, "FSDP version 1 is not supported; launch with --fsdp_version 2"),
        ({}, "FSDP version 1"),
        ({"FSDP_VERSION": "2", "FSDP_OFFLOAD_PARAMS": "true"}, "FSDP_OFFLOAD_PARAMS is not supported"),
    ],
)
def test_what_of_fsdp_is_not_done_is_refused_by_name(environment, sentence, monkeypatch):
    monkeypatch.setenv(sharding.SWITCH, "true")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if "OFFLOAD" in sentence:
        monkeypatch.setattr(sharding, "DEVICES", ("cpu",))
    with pytest.raises(Unsupported, match=sentence), sharding.fsdp_switch(torch.device("cpu")):
        pass


def test_without_the_switch_nothing_is_sharded(monkeypatch):
    monkeypatch.setenv(sharding.SWITCH, "false")
    with sharding.fsdp_switch(torch.device("cpu")) as asked:
        assert not asked
