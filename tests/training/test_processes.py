"""Trainings in two processes equal one process, stop together, and end when any process fails or is killed."""

import os
import pickle
import signal
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule
from torch.testing._internal.distributed.fake_pg import FakeStore

from models.base import load_base
from speculoos.errors import BadInput, Cancelled, ProcessLost, Unavailable
from tests.tools.ports import free_ports
from tests.training.test_loop import Notebook, config
from training import processes
from training.loop import train
from training.method import make_method
from training.processes import Rendezvous, join_training, train_in_processes
from training.sharding import shard

pytestmark = pytest.mark.integration
SAME = {"max_steps": 4, "eval_every": 2, "save_every": 2}


class Stopper(Notebook):
    """Calls `act` once when step 2 is reported."""

    def __init__(self, act):
        super().__init__()
        self.act = act

    def metrics(self, step, values):
        super().metrics(step, values)
        if step == 2 and self.act:
            act, self.act = self.act, None
            act()


def fork_servers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "forkserver" in " ".join(child.cmdline())]


def ranks() -> list[psutil.Process]:
    """The processes of the running training, by their rank."""
    running = [rank for server in fork_servers() for rank in server.children()]
    return sorted(running, key=lambda each: (each.create_time(), each.pid))  # pids start again at the largest one


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_equal_one_with_accumulation(sharding, tiny_base, dataset, tmp_path):
    alone, together = Notebook(), Notebook()
    train(config("eagle3", **SAME, accumulate=2), tiny_base, dataset, tmp_path / "one", None, alone)
    result = train_in_processes(
        2, (), together, config("eagle3", **SAME), tiny_base, dataset, tmp_path / "two", sharding=sharding
    )
    for name in ("train/loss", "train/grad_norm", "eval/tau", "train/tokens"):
        assert together.curve(name) == pytest.approx(alone.curve(name), rel=1e-5), name
    one, two = (
        load_file(folder / "final" / "model.safetensors") for folder in (tmp_path / "one", result.folder.parent)
    )
    for name, tensor in one.items():
        torch.testing.assert_close(two[name], tensor, rtol=1e-5, atol=1e-6)
    assert result.step == 4 and not ranks()


def test_two_nodes_equal_one_process_with_accumulation(tiny_base, dataset, tmp_path, monkeypatch):
    """The second node joins over the loopback; its process is started by a launcher of its own."""
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "home"))
    alone, together = Notebook(), Notebook()
    train(config(**SAME, accumulate=2), tiny_base, dataset, tmp_path / "one", None, alone)
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    with monkeypatch.context() as patch, pytest.raises(Unavailable, match="No training waits at 127.0.0.1"):
        patch.setattr(processes, "CONNECT_SECONDS", 1)
        join_training(endpoint, lambda *_: ())
    joined = []

    def join():
        while not joined:  # until the first node listens
            with suppress(Unavailable):
                join_training(endpoint, lambda *arguments: joined.append(arguments) or ())

    second = threading.Thread(target=join, daemon=True)
    second.start()
    rendezvous = Rendezvous(2, endpoint, job="the job")
    folders = (tiny_base, dataset, tmp_path / "two")
    result = train_in_processes(1, (), together, config(**SAME), *folders, rendezvous=rendezvous)
    second.join()
    assert joined == [(1, "the job")] and result.step == 4
    for name in ("train/loss", "train/grad_norm", "eval/tau", "train/tokens"):
        assert together.curve(name) == pytest.approx(alone.curve(name), rel=1e-5), name


def test_a_training_that_the_home_has_not_signed_is_not_unpickled(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path))
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    store = processes._open_store(endpoint, is_first_node=True)
    store.set(processes.TRAINING, bytes(processes.SIGNATURE_BYTES) + pickle.dumps(print))
    with pytest.raises(BadInput, match="of another home"):
        join_training(endpoint, lambda *_: ())


@pytest.mark.parametrize(
    ("method", "layers"),
    [
        *(("eagle", "EagleLayer"), ("eagle3", "Eagle3Layer"), ("peagle", "Eagle3Layer"), ("dflash", "DFlashLayer")),
        *(("medusa", "ResBlock"), ("draft", "LlamaDecoderLayer")),
    ],
)
def test_each_decoder_layer_is_sharded_by_itself(method, layers, tiny_base):
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        trainer = make_method(config(method), load_base(tiny_base), ())
        shard(trainer, torch.device("cpu"))
    finally:
        dist.destroy_process_group()
    groups = {
        type(module).__name__.removeprefix("FSDP") for module in trainer.modules() if isinstance(module, FSDPModule)
    }
    assert groups == {layers, type(trainer).__name__.removeprefix("FSDP")}


def test_a_stopped_run_ends_at_one_step_and_resumes(tiny_base, dataset, tmp_path):
    """Also if a stopping worker signals the whole process group of the job."""

    def signal_group():
        (server,) = fork_servers()
        server.terminate()

    first = Stopper(signal_group)
    first.stop_after = 2
    with pytest.raises(Cancelled, match="after step 2"):
        train_in_processes(2, (), first, config(**SAME), tiny_base, dataset, tmp_path / "a")
    second = Notebook()
    train_in_processes(2, (), second, config(**SAME), tiny_base, dataset, tmp_path / "b", tmp_path / "a")
    assert list(first.curve()) == [1, 2] and list(second.curve()) == [3, 4]


def test_a_killed_process_ends_the_others(tiny_base, dataset, tmp_path):
    notes = Stopper(lambda: os.kill(ranks()[1].pid, signal.SIGKILL))
    with pytest.raises(ProcessLost, match="Process 2 of the training was killed"):
        train_in_processes(2, (), notes, config(**SAME | {"max_steps": 50_000}), tiny_base, dataset, tmp_path)
    assert not ranks()


def test_an_error_of_the_training_is_the_callers(tiny_base, dataset, tmp_path):
    with pytest.raises(BadInput, match="max_length: this base takes at most"):
        train_in_processes(2, (), Notebook(), config(max_length=4096), tiny_base, dataset, tmp_path)
    assert not list(Path(tmp_path).glob("state-*"))


def test_a_reporter_that_fails_ends_the_run(tiny_base, dataset, tmp_path):
    class Broken(Notebook):
        def metrics(self, step, values):
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        train_in_processes(2, (), Broken(), config(**SAME | {"max_steps": 50_000}), tiny_base, dataset, tmp_path)
