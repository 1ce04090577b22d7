"""Take the weights of supported families and EAGLE drafts from their modules and pack them as DecoderLayers. QKV and
gate-up projections are fused, with the rotary pairs of queries and keys made adjacent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from models.base import LoadedBase
from models.dequantize import is_plain
from models.families import IDENTITY_RULE
from models.runtime.attention import layer_windows
from models.runtime.layer import DecoderLayer, Heads, Norm, norm_of
from models.runtime.linear import Linear, PackedLinear, pack, pack_module, release_pages
from models.runtime.rotary import head_dim, pair_order, paired_rows

FAST_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi", "phi3")
FAST_ROPE = ("default", "linear", "llama3", "yarn")


def not_fast_reason(base: LoadedBase) -> str:
    """Why the fast forward does not support this base, in a few words; "" if it does."""
    config = base.config
    if base.layer_devices:
        return "its layers are on several GPUs"
    if config.model_type not in FAST_FAMILIES:
        return f"the family {config.model_type} has no fast forward"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rope not in FAST_ROPE:
        return f"rotary embeddings of type {rope} change with the length"
    if base.logit_rule != IDENTITY_RULE:
        return "its logit rule is not supported"
    if getattr(config, "qk_layernorm", False):
        return "its query and key layer norms are not supported"
    linears = [module for module in base.model.modules() if hasattr(module, "in_features")]
    if any(m.weight.is_meta for m in linears if isinstance(m, nn.Linear | PackedLinear)):
        return "its weights are not in memory"
    if odd := next((m for m in linears if not isinstance(m, Linear) and not is_plain(m)), None):
        return f"a linear layer ({type(odd).__name__}) does not use its weight as it is"
    return ""


def pack_supported(base: LoadedBase, head: bool = True) -> None:
    """On a CPU, pack the linear layers of a frozen base of a supported family, and its LM head if `head`. The
    transformers forward still works, but the base can no longer be saved or trained, and its weights not be read."""
    if base.device.type == "cpu" and not not_fast_reason(base):
        pack_module(base.model if head else base.layers)


def heads_of(config: Any) -> Heads:
    return Heads(config.num_attention_heads, config.num_key_value_heads, head_dim(config))


def pack_layers_inplace(base: LoadedBase) -> list[DecoderLayer]:
    """Pack the weights of all layers. Mutates the base: each original is dropped once packed, so weights are in memory
    once and the transformers forward no longer works."""
    windows = _windows(base.config, base.num_layers)
    heads, order = heads_of(base.config), _pair_order(base.config)
    return [_pack_layer(layer, heads, order, window) for layer, window in zip(base.layers, windows, strict=True)]


def pack_head_inplace(base: LoadedBase) -> Linear:
    """Pack the LM head and replace that of the base, so that drafts share it."""
    head = base.lm_head
    packed = pack(head.weight, head.bias)
    base.model.set_output_embeddings(packed)
    return packed


def pack_draft_layer_inplace(layer: nn.Module, config: Any, dtype: torch.dtype) -> DecoderLayer:
    """Pack a layer of an EAGLE draft with the LayerConfig `config` in `dtype`. Mutates the draft."""
    heads = Heads(config.num_attention_heads, config.num_key_value_heads, config.head_dim)
    packed = _pack_layer(layer, heads, pair_order(heads.dim, heads.dim), dtype=dtype)
    if not hasattr(layer, "hidden_norm"):
        return packed
    return replace(
        packed,
        attention_norm=norm_of(layer.hidden_norm, dtype=dtype),
        second_norm=packed.attention_norm,
        norm_before_residual=layer.norm_before_residual,
        norm_twice=layer.norm_features_twice,
    )


def pack_linear_inplace(module: nn.Module, name: str, dtype: torch.dtype | None = None) -> Linear:
    """Pack a linear layer of a module in `dtype` or its own; the original is dropped."""
    linear = getattr(module, name)
    packed = pack(*_cast(dtype, getattr(linear, "plain_weight", linear.weight).detach(), linear.bias))
    setattr(module, name, None)
    return packed


def _pack_layer(
    layer: nn.Module, heads: Heads, order: torch.Tensor, window: int | None = None, dtype: torch.dtype | None = None
) -> DecoderLayer:
    attention, mlp = layer.self_attn, layer.mlp

    def norm(module: nn.Module | None, order: torch.Tensor | None = None) -> Norm | None:
        return None if module is None or isinstance(module, nn.Identity) else norm_of(module, order, dtype)

    gated = hasattr(mlp, "gate_up_proj") or hasattr(mlp, "gate_proj")  # checked before the weights are packed
    return DecoderLayer(
        heads=heads,
        attention_norm=norm(layer.input_layernorm),
        qkv=_pack_qkv(attention, heads, order, dtype),
        out=pack_linear_inplace(attention, "o_proj" if hasattr(attention, "o_proj") else "dense", dtype),
        mlp_norm=norm(getattr(layer, "post_attention_layernorm", None)),
        up=_pack_up(mlp, dtype),
        down=pack_linear_inplace(mlp, "down_proj" if hasattr(mlp, "down_proj") else "fc2", dtype),
        activation=_activation(mlp),
        gated=gated,
        window=window,
        query_norm=norm(getattr(attention, "q_norm", None), order),
        key_norm=norm(getattr(attention, "k_norm", None), order),
    )


def _pack_qkv(attention: nn.Module, heads: Heads, order: torch.Tensor, dtype: torch.dtype | None = None) -> Linear:
    if hasattr(attention, "qkv_proj"):
        weight, bias = attention.qkv_proj.weight, attention.qkv_proj.bias
    else:
        weight, bias = _joined([attention.q_proj, attention.k_proj, attention.v_proj])
    rows = paired_rows(len(weight), heads.num_heads + heads.num_kv_heads, order)
    packed = pack(*_cast(dtype, weight.detach()[rows], None if bias is None else bias[rows]))
    _drop(attention, "qkv_proj", "q_proj", "k_proj", "v_proj")
    return packed


def _pack_up(mlp: nn.Module, dtype: torch.dtype | None = None) -> Linear:
    if hasattr(mlp, "gate_proj"):
        packed = pack(*_cast(dtype, *_joined([mlp.gate_proj, mlp.up_proj])))
        _drop(mlp, "gate_proj", "up_proj")
        return packed
    return pack_linear_inplace(mlp, "gate_up_proj" if hasattr(mlp, "gate_up_proj") else "fc1", dtype)


def _joined(linears: list[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    weight = torch.cat([linear.weight.detach() for linear in linears])
    biases = [linear.bias for linear in linears]
    return weight, None if biases[0] is None else torch.cat(biases)


def _cast(
    dtype: torch.dtype | None, weight: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    if dtype is None:
        return weight, bias
    return weight.to(dtype), None if bias is None else bias.detach().to(dtype)


def _drop(module: nn.Module, *names: str) -> None:
    for name in names:
        if hasattr(module, name):
            release_pages(getattr(module, name).weight)
            setattr(module, name, None)


def _pair_order(config: Any) -> torch.Tensor:
    dim = head_dim(config)
    factor = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor")
    return pair_order(dim, int(dim * (factor or getattr(config, "partial_rotary_factor", None) or 1.0)))


def _activation(mlp: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    act = mlp.act_fn if hasattr(mlp, "act_fn") else getattr(mlp, "activation_fn", nn.SiLU())
    return nn.functional.silu if isinstance(act, nn.SiLU) or type(act).__name__ == "SiLUActivation" else act


def _windows(config: Any, num_layers: int) -> list[int | None]:
    by_type = layer_windows(config)
    types = getattr(config, "layer_types", None) or list(by_type) * num_layers
    return [by_type[kind] for kind in types]
