"""The weights of known families in one shape, ready for the fast forward. Takes them from the transformers model.

Queries, keys and values become one product, gate and up another. Rotary pairs (i, i + d/2) of queries and keys are
moved side by side, so that a rotation is one complex multiplication; scores do not change when both move alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from decoding.forward import layer_windows
from decoding.packed import PackedLinear, PlainLinear, pack, pack_module
from decoding.pages import give_back
from models.base import Base

Linear = PackedLinear | PlainLinear
Norm = Callable[[torch.Tensor], torch.Tensor]
FAST_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi", "phi3")
FAST_ROPE = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True)
class FastLayer:
    """One decoder layer. `mlp_norm` is None where attention and MLP read the same norm side by side (Phi)."""

    attention_norm: Norm
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    out: Linear
    mlp_norm: Norm | None
    up: Linear
    gated: bool
    activation: Callable[[torch.Tensor], torch.Tensor]
    down: Linear
    window: int | None


def why_not_fast(base: Base) -> str:
    """Empty when the fast forward covers this base, else the reason in a few words."""
    config = base.config
    if config.model_type not in FAST_FAMILIES:
        return f"the family {config.model_type} has no fast forward"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FAST_ROPE:
        return f"rotary embeddings of type {rope} change with the length"
    if getattr(config, "qk_layernorm", False):
        return "its query and key layer norms are not covered"
    if any(isinstance(m, nn.Linear) and m.weight.is_meta for m in base.model.modules()):
        return "its weights are not in memory"
    return ""


def pack_known(base: Base, head: bool = True) -> None:
    """On a CPU, give a frozen base of a known family packed linear layers; its `head` too, unless drafts borrow it.

    transformers' forward still runs it, but it can no longer be saved, trained or asked for its weights.
    """
    if base.device.type == "cpu" and not why_not_fast(base):
        pack_module(base.model if head else base.layers)


def take_layers(base: Base) -> list[FastLayer]:
    """Every layer's weights, packed. Mutates the base: each original is dropped as soon as it is packed, so weights
    are held once and the transformers forward of this base can no longer run."""
    windows = _windows(base.config, base.num_layers)
    return [_take(layer, base.config, window) for layer, window in zip(base.layers, windows, strict=True)]


def take_head(base: Base) -> Linear:
    """The language-model head, packed, and put in the base's place so that drafts share it."""
    head = base.lm_head
    made = pack(head.weight, head.bias)
    base.model.set_output_embeddings(made)
    return made


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def rotation_table(base: Base, length: int) -> torch.Tensor:
    """Complex [length, head_dim / 2]: what queries and keys at each position are multiplied by.

    Pairs beyond the rotary part (partial rotary factor) are multiplied by one.
    """
    positions = torch.arange(length, device=base.device)[None]
    probe = torch.zeros(1, dtype=torch.float32, device=base.device)
    cos, sin = base.backbone.rotary_emb(probe, positions)
    half = cos.shape[-1] // 2
    turned = torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
    still = torch.ones(length, head_dim(base.config) // 2 - half, dtype=turned.dtype, device=base.device)
    return torch.cat([turned, still], dim=1)


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Turn neighbouring channels of x [n, heads, dim] by complex `rotation` [n, 1, dim / 2]; fp32 in place."""
    pairs = x.float().unflatten(-1, (-1, 2))
    torch.view_as_complex(pairs).mul_(rotation)
    return pairs.flatten(-2).to(x.dtype)


def attend(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """queries [n, heads, dim] over keys and values [1, kv_heads, rows, dim] → [n, heads · dim].

    Query heads that share a key head become rows of one product: `bias` is [heads / kv_heads · n, rows].
    """
    (n, heads, dim), kv_heads = queries.shape, keys.shape[1]
    group = heads // kv_heads
    queries = queries.view(n, kv_heads, group, dim).permute(1, 2, 0, 3).reshape(1, kv_heads, group * n, dim)
    mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, attn_mask=bias)
    return mixed.view(kv_heads, group, n, dim).permute(2, 0, 1, 3).reshape(n, heads * dim)


def _take(layer: nn.Module, config: Any, window: int | None) -> FastLayer:
    attention, mlp = layer.self_attn, layer.mlp
    order = _pair_order(config)
    gated = hasattr(mlp, "gate_up_proj") or hasattr(mlp, "gate_proj")
    query_norm, key_norm = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
    return FastLayer(
        attention_norm=fast_norm(layer.input_layernorm),
        qkv=_take_qkv(attention, config, order),
        query_norm=fast_norm(query_norm, order) if query_norm is not None else None,
        key_norm=fast_norm(key_norm, order) if key_norm is not None else None,
        out=_take_one(attention, "o_proj" if hasattr(attention, "o_proj") else "dense"),
        mlp_norm=fast_norm(layer.post_attention_layernorm) if hasattr(layer, "post_attention_layernorm") else None,
        up=_take_up(mlp),
        gated=gated,
        activation=_activation(mlp),
        down=_take_one(mlp, "down_proj" if hasattr(mlp, "down_proj") else "fc2"),
        window=window,
    )


def _take_qkv(attention: nn.Module, config: Any, order: torch.Tensor) -> Linear:
    if hasattr(attention, "qkv_proj"):
        weight, bias = attention.qkv_proj.weight, attention.qkv_proj.bias
    else:
        parts = [attention.q_proj, attention.k_proj, attention.v_proj]
        weight, bias = _joined(parts)
    rows = paired_rows(len(weight), config.num_attention_heads + config.num_key_value_heads, order)
    made = pack(weight[rows], None if bias is None else bias[rows])
    _drop(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")
    return made


def _take_up(mlp: nn.Module) -> Linear:
    if hasattr(mlp, "gate_proj"):
        made = pack(*_joined([mlp.gate_proj, mlp.up_proj]))
        _drop(mlp, "gate_proj", "up_proj")
        return made
    return _take_one(mlp, "gate_up_proj" if hasattr(mlp, "gate_up_proj") else "fc1")


def _take_one(module: nn.Module, name: str) -> Linear:
    linear = getattr(module, name)
    made = pack(linear.weight, linear.bias)
    setattr(module, name, None)
    return made


def _joined(linears: list[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight = torch.cat([linear.weight for linear in linears])
    biases = [linear.bias for linear in linears]
    return weight, None if biases[0] is None else torch.cat(biases)


def _drop(module: nn.Module, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            give_back(getattr(module, name).weight)
            setattr(module, name, None)


def paired_rows(count: int, heads: int, order: torch.Tensor) -> torch.Tensor:
    """Where each of `count` rows of a joined weight comes from: its first `heads` heads (queries, then keys) have their
    channels in the `order` [head_dim], the rest (values) stays."""
    rows, dim = torch.arange(count), len(order)
    rows[: heads * dim] = (torch.arange(heads)[:, None] * dim + order[None]).flatten()
    return rows


def pair_order(dim: int, rotary: int) -> torch.Tensor:
    """Where each of a head's `dim` channels comes from so that the pairs of its first `rotary` lie side by side.

    For 8 with 4 rotary channels: [0, 2, 1, 3, 4, 5, 6, 7].
    """
    pairs = torch.arange(rotary).view(2, rotary // 2).T.flatten()
    return torch.cat([pairs, torch.arange(rotary, dim)])


def _pair_order(config: Any) -> torch.Tensor:
    dim = head_dim(config)
    factor = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor")
    return pair_order(dim, int(dim * (factor or getattr(config, "partial_rotary_factor", None) or 1.0)))


def fast_norm(module: nn.Module, order: torch.Tensor | None = None) -> Norm:
    weight = module.weight if order is None else module.weight[order]
    if isinstance(module, nn.LayerNorm):
        shape, bias, eps = tuple(weight.shape), module.bias, module.eps
        return lambda x: nn.functional.layer_norm(x, shape, weight, bias, eps)
    return rms_norm(weight, module.variance_epsilon)


def rms_norm(weight: torch.Tensor, eps: float) -> Norm:
    """x / √(Σ x² / d + eps) · weight over the last dimension d, in fp32, for x of the weight's precision.

    torch's own is one kernel on a GPU; on a processor it is ten, where these are four.
    """
    size, dtype = weight.shape[0], weight.dtype
    if weight.device.type != "cpu":
        return lambda x: nn.functional.rms_norm(x, (size,), weight, eps)
    scale, floor = weight.detach().float() * size**0.5, torch.tensor((size * eps) ** 0.5)

    def wide(x: torch.Tensor) -> torch.Tensor:
        return torch.div(x, torch.linalg.vector_norm(x, 2, -1, True).hypot_(floor)).mul_(scale)

    return wide if dtype == torch.float32 else lambda x: wide(x.float()).to(dtype)


def _activation(mlp: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    act = mlp.act_fn if hasattr(mlp, "act_fn") else getattr(mlp, "activation_fn", None)
    return nn.functional.silu if isinstance(act, nn.SiLU) or type(act).__name__ == "SiLUActivation" else act


def _windows(config: Any, num_layers: int) -> list[int | None]:
    """Each layer's sliding window, in order."""
    by_type = layer_windows(config)
    types = getattr(config, "layer_types", None) or list(by_type) * num_layers
    return [by_type[kind] for kind in types]
