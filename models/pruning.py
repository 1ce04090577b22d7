"""Structured pruning of a Llama-like model by width: hidden channels, attention heads and MLP neurons.

Keeps those with the largest weight norms: channels for the whole model, key-value heads (with their query heads) and
neurons for each layer. The pruned model needs training.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from models.methods.standalone import StandaloneShape

READING_MATRICES = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
"""Matrices [out, hidden], which read the hidden states."""
WRITING_MATRICES = ("o_proj", "down_proj")
"""Matrices [hidden, in], which write the hidden states."""
BY_HEAD = ("q_norm", "k_norm")
"""Norms over the head size, which is not pruned."""


def prune_width(
    state: Mapping[str, Tensor], wide: StandaloneShape, narrow: StandaloneShape, head_size: int
) -> dict[str, Tensor]:
    """Prune the tensors of a model of shape `wide` to `narrow`. Raises KeyError if its layers are not Llama's."""
    hidden = _largest(_channels(state, wide.hidden_size), narrow.hidden_size)
    kept = {layer: _kept_rows(state, layer, wide, narrow, head_size) for layer in _layers(state)}
    return {name: _cut(name, value, hidden, kept, wide.hidden_size) for name, value in state.items()}


def _layers(state: Mapping[str, Tensor]) -> set[str]:
    return {name.removesuffix(".self_attn.q_proj.weight") for name in state if name.endswith(".q_proj.weight")}


def _channels(state: Mapping[str, Tensor], hidden: int) -> Tensor:
    """[hidden]: each channel's share of the squared norm, summed over all matrices that read or write it."""
    total = torch.zeros(hidden)
    for name, value in state.items():
        owner = name.split(".")[-2]
        if name.endswith(".weight") and owner in READING_MATRICES + WRITING_MATRICES:
            squares = value.detach().float().cpu().pow(2).sum(0 if owner in READING_MATRICES else 1)
            total += squares / squares.sum().clamp(min=1e-30)
    return total


def _kept_rows(
    state: Mapping[str, Tensor], layer: str, wide: StandaloneShape, narrow: StandaloneShape, head_size: int
) -> dict[str, Tensor]:
    """Rows (for WRITERS: columns) that one layer keeps: `query`, `key` and `inner`."""

    def norms(name: str, dim: int) -> Tensor:
        return state[f"{layer}.{name}.weight"].detach().float().cpu().norm(dim=dim)

    inner = norms("mlp.gate_proj", 1) * norms("mlp.up_proj", 1) * norms("mlp.down_proj", 0)
    out = norms("self_attn.o_proj", 0).view(wide.kv_heads, -1, head_size).pow(2).sum(-1)  # [kv heads, heads of each]
    keys = _largest(out.sum(1), narrow.kv_heads)
    group = out.shape[1]
    queries = torch.cat([key * group + _largest(out[key], narrow.heads // narrow.kv_heads) for key in keys])
    size = torch.arange(head_size)
    return {
        "query": (queries[:, None] * head_size + size).flatten(),
        "key": (keys[:, None] * head_size + size).flatten(),
        "inner": _largest(inner, narrow.intermediate_size),
    }


def _cut(name: str, value: Tensor, hidden: Tensor, kept: Mapping[str, dict[str, Tensor]], width: int) -> Tensor:
    *path, _module, owner, _kind = ("", *name.split("."))
    layer = kept.get(".".join(path).strip("."), {})
    rows = {"q_proj": "query", "k_proj": "key", "v_proj": "key", "gate_proj": "inner", "up_proj": "inner"}
    columns = {"o_proj": "query", "down_proj": "inner"}
    hidden = hidden.to(value.device)
    if owner in WRITING_MATRICES:
        value = value[hidden]
        return value if value.dim() == 1 else value[:, layer[columns[owner]].to(value.device)].contiguous()
    if owner in READING_MATRICES:
        value = value[layer[rows[owner]].to(value.device)] if owner in rows else value
        return value if value.dim() == 1 else value[:, hidden].contiguous()
    by_channel = value.dim() == 1 and len(value) == width and owner not in BY_HEAD
    return value[hidden] if by_channel else value


def _largest(scores: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest scores, ascending."""
    return scores.topk(count).indices.sort().values
