"""FSDP2 over gloo: two processes with sharded drafts equal two with whole ones (DDP), also when interrupted.

Two processes, forked once, do all runs.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models.checkpoints import load_draft, verify_sums
from models.eagle3 import ScaledLinear
from models.methods import train_config
from speculoos.errors import BadInput, Cancelled, Unsupported
from tests.tools.ports import free_ports
from tests.tools.zygote import CLONE, begin
from tests.training.test_loop import SHORT, Notebook
from training import samples, setup, sharding
from training.loop import train
from training.method import make_method

pytestmark = pytest.mark.integration

METHODS = {
    **{"medusa": {"medusa_num_heads": 2}, "eagle3": {"draft_vocab_size": 100}},
    **{"peagle": {"draft_vocab_size": 100}, "dflash": {"max_anchors": 8}},
}
INTERRUPTED = ("eagle3", "dflash")
"""Methods of which a sharded run is stopped and resumed; test_loop.py resumes all in one process."""
RUNS = (("whole", None), ("sharded", None), ("stopped", None), ("resumed", "stopped"))
STEPS, HALF = 4, 2
COMPARED = ("train/loss", "train/grad_norm", "train/top1_depth1", "train/top1_head1", "eval/tau", "eval/tau_tree")


class Samples(Notebook):
    def sample(self, step, record):
        self.values[step]["sample"] = record["text"]


def settings(method, **changes):
    fixed = {**SHORT, "max_steps": STEPS, "accumulate": 2, "eval_every": HALF, "save_every": HALF, "samples": 1}
    return train_config(method=method, **{**fixed, **METHODS[method], **changes})


def work(base, data, folder):
    """All runs, in each of the two processes; the reported values go to <run>.json."""
    os.environ["ACCELERATE_USE_CPU"] = "true"
    torch.set_num_threads(1)
    samples.TOKENS = 16
    shards = []

    def shard(method, device):
        sharding.shard(method, device)
        assert all(p.to_local().numel() < p.numel() for p in method.parameters() if len(p) > 1)
        shards.append(method)

    setup.shard = shard
    for method in METHODS:
        for name, resume in RUNS if method in INTERRUPTED else RUNS[:2]:
            shards.clear()
            kind = "none" if name == "whole" else "fsdp"
            out, notes = Path(folder) / f"{method}-{name}", Samples(HALF if name == "stopped" else None)
            with suppress(Cancelled):
                earlier = resume and f"{folder}/{method}-{resume}"
                train(settings(method), base, data, out, earlier, notes, sharding=kind)
            assert len(shards) == (name != "whole")
            if os.environ["RANK"] == "0":
                out.with_suffix(".json").write_text(json.dumps(notes.values))
    torch.distributed.destroy_process_group()  # else its threads may abort the exit


@pytest.fixture(scope="module")
def runs(tiny_base, dataset, tmp_path_factory):
    """The folder with the output of each run, <method>-<name>."""
    folder = tmp_path_factory.mktemp("runs")
    (port,) = free_ports(1)
    children = []
    for rank in range(2):
        env = {**os.environ, "PYTHONPATH": str(CLONE), "WORLD_SIZE": "2", "RANK": str(rank)}
        env |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = json.dumps([str(tiny_base), str(dataset), str(folder)])
        children.append(begin("tests.training.test_sharded", [arguments], env))
    assert [child.wait(timeout=200) for child in children] == [0, 0]
    return folder


def values_of(run):
    """{step: compared values}."""
    reported = json.loads(run.with_suffix(".json").read_text())
    return {
        int(step): {name: row[name] for name in (*COMPARED, "sample") if name in row} for step, row in reported.items()
    }


def tensors_of(run):
    """The tensors of the checkpoint and of the last state."""
    files = [run / "final" / "model.safetensors", *(run / f"state-{STEPS}").glob("*.safetensors")]
    assert len(files) == 3
    return {f"{file.name} {name}": tensor for file in files for name, tensor in load_file(file).items()}


def check_close(run, expected):
    tensors, expected_tensors = tensors_of(run), tensors_of(expected)
    assert tensors.keys() == expected_tensors.keys()
    for name, tensor in tensors.items():
        torch.testing.assert_close(tensor, expected_tensors[name], rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_sharded_equals_whole(method, runs, base):
    whole, sharded = runs / f"{method}-whole", runs / f"{method}-sharded"
    expected, values = values_of(whole), values_of(sharded)
    assert list(values) == list(expected) == [1, 2, 3, 4] and {"train/grad_norm", "eval/tau", "sample"} < set(values[4])
    for step, row in values.items():
        assert row.pop("sample", "") == expected[step].pop("sample", "")
        assert row == pytest.approx(expected[step], rel=1e-5), step
    check_close(sharded, whole)
    verify_sums(sharded / "final")
    assert load_draft(sharded / "final", base).method == method and not list(sharded.glob(".*"))


@pytest.mark.parametrize("method", INTERRUPTED)
def test_interrupted_and_resumed_equals_undisturbed(method, runs, tiny_base, dataset, tmp_path):
    undisturbed, stopped, resumed = (runs / f"{method}-{name}" for name in ("sharded", "stopped", "resumed"))
    assert not (stopped / "final").exists() and list(values_of(resumed)) == [3, 4]
    assert {**values_of(stopped), **values_of(resumed)} == values_of(undisturbed)
    expected = tensors_of(undisturbed)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in tensors_of(resumed).items())
    train(settings(method, accumulate=4), tiny_base, dataset, tmp_path / "alone", stopped)  # in one process
    check_close(tmp_path / "alone", undisturbed)


def test_eagle3_is_sharded_with_its_scaled_inputs(base, conversations):
    fc = make_method(settings("eagle3"), base, conversations).draft.fc
    assert isinstance(fc, ScaledLinear) and len(fc.scale.unique()) > 1


def test_a_state_of_other_batches_per_step_is_refused(runs, tiny_base, dataset, tmp_path):
    with pytest.raises(BadInput, match="accumulate: .* 2 batches in each of 2 processes, not 2 in each of 1"):
        train(settings("eagle3"), tiny_base, dataset, tmp_path, runs / "eagle3-stopped")


def test_accelerates_own_fsdp_is_refused(monkeypatch, tiny_base, dataset, tmp_path):
    monkeypatch.setenv(sharding.SWITCH, "true")
    with pytest.raises(Unsupported, match="ACCELERATE_USE_FSDP is set, but the training shards by itself"):
        train(settings("medusa"), tiny_base, dataset, tmp_path)


if __name__ == "__main__":
    work(*json.loads(sys.argv[1]))
