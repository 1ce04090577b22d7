"""Loading a base on an emulated GPU."""

from pathlib import Path

import torch

from models.base import load_base
from tests.tools.emulated_cuda import emulated_cuda


def test_kernels_on_a_gpu_need_no_plan_for_every_shape_and_no_compiler(tiny_base: Path) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    torch.backends.python_native.triton.enabled = True
    load_base(tiny_base)
    assert torch.backends.cuda.cudnn_sdp_enabled() and torch.backends.python_native.triton.enabled
    with emulated_cuda():
        load_base(tiny_base, device="cuda")
    assert not torch.backends.cuda.cudnn_sdp_enabled() and not torch.backends.python_native.triton.enabled
    assert torch.backends.cuda.flash_sdp_enabled() and torch.backends.cuda.mem_efficient_sdp_enabled()
