"""The losses under FSDP2 (`fully_shard` over gloo): two processes with sharded parameters equal one with whole ones.

The loop itself refuses FSDP through accelerate, which on a CPU would silently fall back to DDP.
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.tools.ports import free_ports

WORKER = """
import json, os, sys, torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.fsdp import fully_shard
from models.base import load_base
from training.batches import load_conversations
from training.config import TrainConfig
from training.feature_store import FeatureStore
from training.method import make_method
from training.stream import Stream

settings, base_path, data, out, batches = json.loads(sys.argv[1])
torch.set_num_threads(1)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo")
base = load_base(base_path)
found, _ = load_conversations(data, base.tokenizer, 64, base.vocab_size, sorted(base.eos_ids), "")
torch.manual_seed(0)
method = make_method(TrainConfig(**settings), base, found).train()
stream = Stream(found, 128, 0, method, torch.device("cpu"), FeatureStore(0))
features = [stream.features(n) for n in range(batches)]
counts = torch.stack([method.counts(f) for f in features]).sum(0)
scale = torch.tensor(method.weights) / counts.clamp(min=1)
if world > 1:
    fully_shard(method)
optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
own = features[rank::world]
for place, kept in enumerate(own):
    if world > 1:
        method.set_requires_gradient_sync(place == len(own) - 1)
    method(kept, 0, scale * world).loss.backward()  # like DDP, FSDP takes the mean over processes
norm = torch.nn.utils.clip_grad_norm_(method.parameters(), 1e9)
optimizer.step()
whole = lambda t: t.full_tensor() if hasattr(t, "full_tensor") else t
made = {"norm": whole(norm).detach().reshape(1)}
made |= {name: whole(p).detach().clone() for name, p in method.named_parameters()}
if rank == 0:
    save_file(made, out)
dist.destroy_process_group()
"""


def run(settings, base, data, out, processes):
    (port,) = free_ports(1)
    arguments = json.dumps([settings, str(base), str(data), str(out), 4])
    children = []
    for rank in range(processes):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(processes)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        children.append(subprocess.Popen([sys.executable, "-c", WORKER, arguments], env=env))
    assert [child.wait(timeout=200) for child in children] == [0] * processes
    return load_file(out)


@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_sharded_parameters_take_the_step_that_whole_ones_take(method, tiny_base, dataset, tmp_path):
    settings = {"method": method}
    one = run(settings, tiny_base, dataset, tmp_path / "one.safetensors", 1)
    two = run(settings, tiny_base, dataset, tmp_path / "two.safetensors", 2)
    assert one.keys() == two.keys() and len(one) > 3
    assert torch.allclose(one["norm"], two["norm"], rtol=1e-5) and one["norm"] > 0
    assert all(torch.allclose(one[name], two[name], rtol=1e-5, atol=1e-6) for name in one)
