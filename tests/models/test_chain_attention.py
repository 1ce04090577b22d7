"""Chunked attention of training-time test equals a literal softmax over all keys that a position sees."""

import pytest
import torch
from torch import Tensor

from models.chain_attention import ChainBackend

STEPS, HEADS, KEY_HEADS, LENGTH, WIDTH = 3, 4, 2, 11, 8


def literal(q: list[Tensor], k: list[Tensor], v: list[Tensor], index: list[list[int]]) -> list[Tensor]:
    """One softmax per step, row, head and position."""
    outputs = [torch.zeros_like(each) for each in q]
    for step, out in enumerate(outputs):
        for row, positions in enumerate(index):
            for head in range(HEADS):
                group = head // (HEADS // KEY_HEADS)
                for i, t in enumerate(positions):
                    steps = range(1, step + 1)
                    keys = torch.stack([*k[0][row, group, : t + 1], *(k[j][row, group, i] for j in steps)])
                    values = torch.stack([*v[0][row, group, : t + 1], *(v[j][row, group, i] for j in steps)])
                    weights = (keys @ q[step][row, head, i] / WIDTH**0.5).softmax(0)
                    out[row, head, i] = weights @ values
    return outputs


@pytest.mark.parametrize("index", [None, [[2, 3, 5, 6, 9], [0, 7, 10, 0, 0]]])
def test_chunks_equal_a_literal_softmax(index: list[list[int]] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Grouped heads, values and gradients; the second row of the index ends with padding."""
    monkeypatch.setattr("models.chain_attention.CHUNK", 3)
    torch.manual_seed(0)
    counts = [len(index[0]) if index else LENGTH] * STEPS
    q = [torch.randn(2, HEADS, m, WIDTH, requires_grad=True) for m in counts]
    k, v = ([torch.randn(2, KEY_HEADS, m, WIDTH, requires_grad=True) for m in (LENGTH, *counts[1:])] for _ in range(2))
    positions = [[2, 3, 5, 6, 9], [0, 7, 10]] if index else [list(range(LENGTH))] * 2
    expected = literal([each.clone() for each in q], k, v, positions)
    backend = ChainBackend(torch.tensor(index) if index else None)
    actual = [backend.attend(0, *each) for each in zip(q, k, v, strict=True)]
    weights = [torch.randn_like(each) * (each != 0) for each in expected]  # zero at the padding
    for ours, theirs in zip(actual, expected, strict=True):
        assert torch.allclose(ours[theirs != 0], theirs[theirs != 0], atol=1e-5)
    inputs = [*q, *k, *v]
    gradients = [
        torch.autograd.grad(sum((o * w).sum() for o, w in zip(outputs, weights, strict=True)), inputs)
        for outputs in (actual, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_half_precision_keeps_a_precise_softmax() -> None:
    """The gradients of bfloat16 differ from those of fp32 by its rounding only."""
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 200, 16).bfloat16() for _ in range(6)]
    results = []
    for dtype in (torch.bfloat16, torch.float32):
        inputs = [each.to(dtype).requires_grad_() for each in tensors]
        backend = ChainBackend()
        out = [backend.attend(0, *inputs[3 * step : 3 * step + 3]) for step in range(2)]
        results.append(torch.autograd.grad(sum(each.square().sum() for each in out), inputs))
    for half, full in zip(*results, strict=True):
        assert (half.float() - full).abs().max() < 0.02 * full.abs().max()
