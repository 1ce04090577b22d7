"""Two processes (DDP over gloo) equal one that accumulates, though their masks have different sizes."""

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from models.methods import train_config
from tests.tools.ports import free_ports
from tests.training.test_loop import SHORT, Notebook
from training.loop import train

pytestmark = pytest.mark.integration

COMPARED = ("train/loss", "train/grad_norm", "train/top1_depth1")
"""The gradient norm is the one before clipping."""
WORKER = """
import json, sys, torch
torch.set_num_threads(1)
from tests.training.test_distributed import COMPARED
from tests.training.test_loop import Notebook
from training import loop
from models.methods import train_config

settings, base, data, out = json.loads(sys.argv[1])
notes = Notebook()
result = loop.train(train_config(**settings), base, data, out, reporter=notes)
if notes.values:
    curves = [[notes.curve(name)[step] for name in COMPARED] for step in (1, 2)]
    print(json.dumps({"curves": curves, "tokens": result.metrics["tokens"]}))
"""


def test_two_processes_equal_one_with_accumulation(tiny_base, dataset, tmp_path):
    settings = {"method": "eagle3", **SHORT, "max_steps": 2, "optimizer": "sgd", "lr": 0.1, "clip": 0.0}
    settings |= {"held_out": 0.2, "eval_every": 0, "save_every": 0, "schedule": "constant", "warmup_ratio": 0.0}
    notes = Notebook()
    one = train(train_config(**settings, accumulate=4), tiny_base, dataset, tmp_path / "one", reporter=notes)
    (port,) = free_ports(1)
    children = []
    for rank in range(2):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "WORLD_SIZE": "2"}
        env |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        arguments = [{**settings, "accumulate": 2}, str(tiny_base), str(dataset), str(tmp_path / "two")]
        command = [sys.executable, "-c", WORKER, json.dumps(arguments)]
        children.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE))
    outputs = [child.communicate(timeout=200)[0] for child in children]
    assert all(child.returncode == 0 for child in children)
    two = json.loads(outputs[0].splitlines()[-1])
    ours = [[notes.curve(name)[step] for name in COMPARED] for step in (1, 2)]
    assert torch.allclose(torch.tensor(ours), torch.tensor(two["curves"]), rtol=1e-5)
    assert one.metrics["tokens"] == two["tokens"]
    first, second = (load_file(tmp_path / name / "final" / "model.safetensors") for name in ("one", "two"))
    assert all(torch.allclose(v, second[k], rtol=1e-5, atol=1e-6) for k, v in first.items() if v.is_floating_point())
