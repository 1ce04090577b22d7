"""GPUs by UUID through NVML."""

import pynvml
import pytest

from speculoos import gpus
from tests.tools import fake_gpus
from tests.tools.fake_gpus import uuid


def test_a_machine_without_the_driver_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def init() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    fake_gpus.install_in_nvml(monkeypatch, 2)
    monkeypatch.setattr(pynvml, "nvmlInit", init)
    assert gpus.visible_gpus() == [] == gpus.measure() and gpus.metrics([uuid(0)]) == {}


@pytest.mark.parametrize(
    ("listed", "numbers"),
    [("2,0", [2, 0]), (f"{uuid(1)},GPU-5d3b1c20", [1, 0]), ("1,7,0", [1]), ("GPU-5d", []), ("", []), ("-1", [])],
)
def test_visible_gpus_are_those_that_cuda_sees(
    listed: str, numbers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_gpus.install_in_nvml(monkeypatch, 3)
    assert gpus.visible_gpus() == [uuid(0), uuid(1), uuid(2)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert gpus.visible_gpus() == [uuid(number) for number in numbers]


def test_a_gpu_is_measured_without_what_it_does_not_report(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_gpus.install_in_nvml(monkeypatch, 2)
    assert gpus.measure()[1] == gpus.Gpu(uuid(1), "NVIDIA H100", 0.1, 10**9, 80 * 10**9, None)
    assert gpus.metrics([uuid(1), uuid(5)]) == {"gpu/utilization/GPU-5d3b1c21": 0.1, "gpu/memory_gb/GPU-5d3b1c21": 1.0}
    assert gpus.metrics([uuid(0)])["gpu/temperature/GPU-5d3b1c20"] == 50
