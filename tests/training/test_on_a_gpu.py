"""Training on an emulated GPU: one step of every method, with its evaluation and its files."""

from pathlib import Path

import pytest
import torch

from models.base import training_dtype
from tests.tools.emulated_cuda import emulated_cuda
from tests.training.test_loop import METHODS, Notebook, config
from training.loop import train


@pytest.mark.parametrize("method", METHODS)
def test_a_step_of_every_method(method: str, tiny_base: Path, dataset: Path, tmp_path: Path) -> None:
    """The losses equal those on the CPU up to the rounding of unpacked products."""
    on_cpu, on_gpu = Notebook(), Notebook()
    short = {"max_steps": 2, "eval_every": 2, "base_dtype": "float32"}
    train(config(method, **short), tiny_base, dataset, tmp_path / "cpu", reporter=on_cpu)
    with emulated_cuda() as device:
        train(config(method, **short, device="cuda"), tiny_base, dataset, tmp_path / "gpu", reporter=on_gpu)
    assert device.launches["mm"]
    assert on_gpu.curve() == pytest.approx(on_cpu.curve(), rel=1e-3)
    assert on_gpu.curve("eval/tau") == pytest.approx(on_cpu.curve("eval/tau"), rel=0.05)


def test_a_base_that_is_divided_among_two_gpus(tiny_base: Path, dataset: Path, tmp_path: Path) -> None:
    on_cpu, divided = Notebook(), Notebook()
    short = {"max_steps": 1, "eval_every": 0, "base_dtype": "float32"}
    train(config("eagle3", **short), tiny_base, dataset, tmp_path / "cpu", reporter=on_cpu)
    with emulated_cuda(2):
        settings = config("eagle3", **short, device="cuda:0,cuda:1")
        train(settings, tiny_base, dataset, tmp_path / "divided", reporter=divided)
    assert divided.curve() == pytest.approx(on_cpu.curve(), rel=1e-3) and divided.curve()


def test_the_default_precision_is_bfloat16_where_a_gpu_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    with emulated_cuda():
        assert training_dtype("default", gpu) == training_dtype("auto", gpu) == "bfloat16"
        # A GPU that only emulates bfloat16: torch says yes unless emulation is excluded.
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation)
        assert (training_dtype("default", gpu), training_dtype("auto", gpu)) == ("float32", "float16")
    assert training_dtype("default", cpu) == "float32" and training_dtype("float16", gpu) == "float16"
