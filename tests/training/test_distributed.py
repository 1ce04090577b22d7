"""Two processes (DDP over gloo) equal one that accumulates, though their masks have different sizes."""

import json
import os
import socket
import subprocess
import sys

import torch
from safetensors.torch import load_file

from tests.training.test_loop import SHORT

WORKER = """
import json, sys, torch
torch.set_num_threads(1)
from speculoos.reporting import SilentReporter
from training import loop
from models.methods import train_config

settings, base, data, out = json.loads(sys.argv[1])
norms = []
class Keep(SilentReporter):
    def metrics(self, step, values):
        if "train/loss" in values:
            norms.append([values["train/loss"], values["train/grad_norm"], values["train/top1_depth1"]])
result = loop.train(train_config(**settings), base, data, out, reporter=Keep())
if norms:
    print(json.dumps({"norms": norms, "tokens": result.figures["tokens"]}))
"""


def run(settings, base, data, out, processes):
    """What the main process reported, training in `processes` processes."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    children = []
    for rank in range(processes):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
        if processes > 1:
            env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes)}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = json.dumps([settings, str(base), str(data), str(out)])
        children.append(subprocess.Popen([sys.executable, "-c", WORKER, arguments], env=env, stdout=subprocess.PIPE))
    outputs = [child.communicate(timeout=200)[0] for child in children]
    assert all(child.returncode == 0 for child in children)
    return json.loads(outputs[0].splitlines()[-1])


def test_two_processes_equal_one_with_accumulation(tiny_base, dataset, tmp_path):
    settings = {"method": "eagle3", **SHORT, "max_steps": 3, "optimizer": "sgd", "lr": 0.1, "clip": 0.0}
    settings |= {"held_out": 0.2, "eval_every": 0, "save_every": 0, "schedule": "constant", "warmup_ratio": 0.0}
    one = run({**settings, "accumulate": 4}, tiny_base, dataset, tmp_path / "one", 1)
    two = run({**settings, "accumulate": 2}, tiny_base, dataset, tmp_path / "two", 2)
    a, b = torch.tensor(one["norms"]), torch.tensor(two["norms"])
    assert a.shape == b.shape == (3, 3) and one["tokens"] == two["tokens"]
    assert torch.allclose(a, b, rtol=1e-5)  # loss, gradient norm before clipping, accuracy
    first, second = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(v, second[k], rtol=1e-5, atol=1e-6) for k, v in first.items() if v.is_floating_point())
