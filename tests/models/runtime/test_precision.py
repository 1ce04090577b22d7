"""A model of half precision computes in float32 while it is probed, whatever its linear layers are."""

import pytest
import torch
from torch import nn

from models.runtime.linear import PackedLinear, PlainLinear, packing_works
from models.runtime.precision import in_float32


@pytest.mark.parametrize("layer", [PackedLinear, PlainLinear])
def test_frozen_layers_of_half_precision_compute_in_float32_for_the_moment(layer) -> None:
    if layer is PackedLinear and not packing_works(torch.bfloat16):
        pytest.skip("this processor cannot pack bfloat16")
    weight, x = torch.randn(8, 4).bfloat16(), torch.randn(5, 4)
    model = nn.Sequential(layer(weight, torch.ones(8).bfloat16()))
    with in_float32(model):
        output = model(x)
    assert torch.allclose(output, x @ weight.float().T + 1, atol=1e-6)
    assert model(x.bfloat16()).dtype == torch.bfloat16, "as it was afterwards"
