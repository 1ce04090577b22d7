"""The forward passes of the other projects, rewritten in plain torch from their sources: one sequence, no cache, a loop
over heads, tensors by their own names. They use nothing of the package under test."""

import math
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight


def linear(tensors: Tensors, name: str, x: Tensor) -> Tensor:
    y = x @ tensors[f"{name}.weight"].T
    return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y


def frequencies(config: dict[str, Any], dim: int) -> tuple[Tensor, float]:
    """The rotation of each pair of channels in radians per position, and YaRN's factor."""
    theta, scaling = config.get("rope_theta", 10000.0), config.get("rope_scaling") or {}
    plain = torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)])
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor", 1.0)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        length = scaling["original_max_position_embeddings"]
        return torch.stack([_llama3(frequency, scaling, length, factor) for frequency in plain]), 1.0
    if kind == "yarn":
        length = scaling["original_max_position_embeddings"]
        ends = [dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(theta)) for rotations in (32, 1)]
        low, high = max(math.floor(ends[0]), 0), min(math.ceil(ends[1]), dim - 1)
        ramp = ((torch.arange(dim // 2) - low) / max(high - low, 0.001)).clamp(0, 1)
        return plain / factor * ramp + plain * (1 - ramp), 0.1 * math.log(factor) + 1.0
    return plain, 1.0


def _llama3(frequency: Tensor, scaling: dict[str, Any], length: int, factor: float) -> Tensor:
    wave = 2 * math.pi / frequency
    if wave < length / scaling["high_freq_factor"]:
        return frequency
    if wave > length / scaling["low_freq_factor"]:
        return frequency / factor
    smooth = (length / wave - scaling["low_freq_factor"]) / (scaling["high_freq_factor"] - scaling["low_freq_factor"])
    return (1 - smooth) * frequency / factor + smooth * frequency


def rotated(x: Tensor, config: dict[str, Any]) -> Tensor:
    """Rotate x [n, d] at positions 0…n-1; a pair is one channel of each half."""
    frequency, factor = frequencies(config, x.shape[1])
    angles = torch.arange(len(x))[:, None] * frequency
    left, right = x.chunk(2, 1)
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat([left * cos - right * sin, right * cos + left * sin], 1)


def attention(tensors: Tensors, prefix: str, config: dict[str, Any], x: Tensor) -> Tensor:
    """x [n, width] → [n, H], causal."""
    heads, keys, eps = config["num_attention_heads"], config["num_key_value_heads"], config["rms_norm_eps"]
    q, k, v = (linear(tensors, f"{prefix}{name}_proj", x) for name in "qkv")
    dim, later = q.shape[1] // heads, torch.ones(len(x), len(x)).triu(1).bool()
    out = []
    for head in range(heads):
        group = head * keys // heads
        query = q[:, head * dim : (head + 1) * dim]
        key, value = (t[:, group * dim : (group + 1) * dim] for t in (k, v))
        if f"{prefix}q_norm.weight" in tensors:
            query = rms(query, tensors[f"{prefix}q_norm.weight"], eps)
            key = rms(key, tensors[f"{prefix}k_norm.weight"], eps)
        scores = rotated(query, config) @ rotated(key, config).T / math.sqrt(dim)
        out.append(scores.masked_fill(later, float("-inf")).softmax(-1) @ value)
    return linear(tensors, f"{prefix}o_proj", torch.cat(out, 1))


def mlp(tensors: Tensors, prefix: str, x: Tensor) -> Tensor:
    gate = linear(tensors, f"{prefix}gate_proj", x)
    return linear(tensors, f"{prefix}down_proj", gate * gate.sigmoid() * linear(tensors, f"{prefix}up_proj", x))


def layer(tensors: Tensors, prefix: str, config: dict[str, Any], read: Tensor, residual: Tensor) -> Tensor:
    """`read` is the input of attention, `residual` is added to its output."""
    x = residual + attention(tensors, f"{prefix}self_attn.", config, read)
    return x + mlp(tensors, f"{prefix}mlp.", rms(x, tensors[f"{prefix}post_attention_layernorm.weight"], EPS(config)))


def EPS(config: dict[str, Any]) -> float:
    return config["rms_norm_eps"]


class Eagle:
    """EAGLE-1: features [n, H] and tokens → features; the base's head scores."""

    def __init__(self, config: dict[str, Any], tensors: Tensors, table: Tensor, head: Tensor):
        self.config, self.tensors, self.head = config, tensors, head
        self.table = tensors.get("embed_tokens.weight", table)

    def fuse(self, hidden: Tensor, aux: Tensor) -> Tensor:
        return hidden

    def hidden(self, features: Tensor, ids: Tensor) -> Tensor:
        x = linear(self.tensors, "fc", torch.cat([self.table[ids], features], 1))
        for index in range(self.config["num_hidden_layers"]):
            name = f"layers.{index}.input_layernorm.weight"
            read = rms(x, self.tensors[name], EPS(self.config)) if index else x
            x = layer(self.tensors, f"layers.{index}.", self.config, read, x)
        return x

    def logits(self, x: Tensor) -> Tensor:
        return x @ self.head.T


class Eagle3:
    """EAGLE-3 with the options that other projects add."""

    def __init__(self, config: dict[str, Any], tensors: Tensors, table: Tensor, head: Tensor):
        self.config = {**config, **config.get("transformer_layer_config", {})}
        self.tensors, self.table = tensors, tensors.get("embed_tokens.weight", table)
        self.first = "midlayer." if "midlayer.hidden_norm.weight" in tensors else "layers.0."

    def fuse(self, hidden: Tensor, aux: Tensor) -> Tensor:
        eps = EPS(self.config)
        if "input_norm.weight" in self.tensors:
            aux = rms(aux, self.tensors["input_norm.weight"], eps)
        if "fc_norm.0.weight" in self.tensors:
            parts = aux.chunk(3, 1)
            aux = torch.cat([rms(p, self.tensors[f"fc_norm.{i}.weight"], eps) for i, p in enumerate(parts)], 1)
        return linear(self.tensors, "fc", aux)

    def hidden(self, features: Tensor, ids: Tensor) -> Tensor:
        eps, at = EPS(self.config), self.first
        normed = rms(self.before(features), self.tensors[f"{at}hidden_norm.weight"], eps)
        embedded = rms(self.table[ids], self.tensors[f"{at}input_layernorm.weight"], eps)
        residual = normed if self.config.get("norm_before_residual") else features
        x = layer(self.tensors, at, self.config, torch.cat([embedded, normed], 1), residual)
        for index in range(1, self.config["num_hidden_layers"]):
            read = rms(x, self.tensors[f"layers.{index}.input_layernorm.weight"], eps)
            x = layer(self.tensors, f"layers.{index}.", self.config, read, x)
        return rms(x, self.tensors["norm.weight"], eps) if self.config.get("norm_output") else x

    def before(self, features: Tensor) -> Tensor:
        """The input of the norm of the features."""
        return features

    def logits(self, x: Tensor) -> Tensor:
        if not self.config.get("norm_output"):
            x = rms(x, self.tensors["norm.weight"], EPS(self.config))
        return x @ self.tensors["lm_head.weight"].T


def medusa(tensors: Tensors, hidden: Tensor, head: Tensor, prefix: str = "") -> Tensor:
    """Logits [heads, n, V] of the Medusa repository's heads; `head` [V, H] scores where they have no matrix."""
    logits = []
    for number in range(1 + max(int(name.removeprefix(prefix).split(".")[0]) for name in tensors)):
        x, at = hidden, 0
        while f"{prefix}{number}.{at}.linear.weight" in tensors:
            y = linear(tensors, f"{prefix}{number}.{at}.linear", x)
            x, at = x + y * y.sigmoid(), at + 1
        logits.append(x @ tensors.get(f"{prefix}{number}.{at}.weight", head).T)
    return torch.stack(logits)


def vllm_medusa(config: dict[str, Any], tensors: Tensors, hidden: Tensor) -> Tensor:
    """Logits [heads, n, V] of vLLM's heads, −∞ for tokens that are not in a token map."""
    logits = []
    for number in range(config["num_heads"]):
        y = linear(tensors, f"blocks.{number}.layers.0", hidden)
        matrix = tensors["lm_heads.0.weight" if config["original_lm_head"] else f"lm_heads.{number}.weight"]
        scores = (hidden + y * y.sigmoid()) @ matrix.T
        whole = torch.full((len(hidden), config["vocab_size"]), float("-inf"))
        whole[:, tensors.get("token_map", torch.arange(config["vocab_size"]))] = scores
        logits.append(whole)
    return torch.stack(logits)


class Eagle3Twice(Eagle3):
    """As nvidia-modelopt 0.41 to 0.47 runs it: its decoder layer norms the features by the norm of the embeddings, and
    the hook on attention then by their own (modelopt/torch/speculative/plugins/modeling_eagle.py)."""

    def before(self, features: Tensor) -> Tensor:
        return rms(features, self.tensors[f"{self.first}input_layernorm.weight"], EPS(self.config))
