"""Training on an emulated GPU: one step of every method, with its evaluation and its files."""

from pathlib import Path

import pytest

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
