"""Draft networks as servers build them, in plain torch. Each reader loads an export like that server's loader. Readers
use neither the writers nor the workbench's own networks, so equal logits show that the files are correct.

A reader is called with the export's folder and its checkpoint. An EAGLE reader has the interface of `models.eagle`; a
Medusa reader `logits` and `target_ids`; a standalone draft is a transformers model. Shapes: n positions, H hidden size,
V vocabulary of the base model, V' columns of the draft."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

from formats.checkpoint import CheckpointFiles
from models.dequantize import finish_loading
from models.identity import read_json
from models.quantization import CONFIG, loading_config

IDS = "eagle_aux_hidden_state_layer_ids"


class Weights:
    """The tensors of a file by name, floating-point types as float32; `used` are the names that were read. With the
    `quantization_config` of compressed-tensors, linear layers that it does not ignore have 8-bit weights and a scale
    per output channel. Activations are not quantized here."""

    def __init__(self, path: Path, quantization_config: Mapping[str, Any] | None = None):
        self.path, self.tensors, self.quantization = path, load_file(path), quantization_config
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Tensor:
        """Raises KeyError with the file's name if the tensor is missing."""
        if name not in self.tensors:
            raise KeyError(f"{self.path.name}: {name} is missing.")
        self.used.add(name)
        value = self.tensors[name]
        return value.float() if value.is_floating_point() else value

    def linear(self, x: Tensor, name: str, bias: Tensor | None = None) -> Tensor:
        """x [..., in] times the matrix `name` [out, in] → [..., out]."""
        weight, layer = self[name], name.removesuffix(".weight")
        if self.quantization and not self._ignored(layer):
            weight = weight.float() * self[f"{layer}.weight_scale"]
        elif self.tensors[name].element_size() == 1:
            raise ValueError(f"config.json: quantization_config: {layer} is stored in 8 bits, but not quantized.")
        return F.linear(x, weight, bias)

    def _ignored(self, layer: str) -> bool:
        """As in vLLM and SGLang: the names of layers, or patterns after `re:`, of the server's modules."""
        module = layer if layer == "lm_head" else f"model.{layer}"
        names = self.quantization["ignore"] if self.quantization else ()
        return any(re.match(name[3:], module) if name.startswith("re:") else name == module for name in names)

    @property
    def unused(self) -> list[str]:
        """Names of tensors that were never read."""
        return sorted({*self.tensors} - self.used)


@dataclass
class LlamaDraft:
    """EAGLE-1 or EAGLE-3, with Llama layers over features. `layer_inputs`: the base model's layers (0-based) whose
    *inputs* the server passes to the draft, in this order; none for EAGLE-1. `own_embeddings`: the server uses
    embeddings in the file, else always the target's. `bias`: its `fc` has a bias. `eagle31`: it reads EAGLE-3.1's
    options. `base` is set before the first use.

    EAGLE-1: x = fc([embedding, feature]); layer 0 has no input norm; features are the last layer's output, logits by
    the target's head. EAGLE-3: h = fc(hidden states), attention over [norm(embedding), norm(h)] with the residual h,
    logits from norm(x) by its own head, while x is the feature of the next step."""

    config: Mapping[str, Any]
    weights: Weights
    layer_inputs: tuple[int, ...]
    target_ids: Tensor
    own_embeddings: bool
    bias: bool = False
    residual_after_norm: bool = False
    eagle31: bool = False
    base: Any = None

    @property
    def layers_wanted(self) -> tuple[int, ...]:
        return tuple(layer - 1 for layer in self.layer_inputs)

    def fuse(self, hidden: Tensor, aux: tuple[Tensor, ...]) -> Tensor:
        """Features [1, n, H] from the base model's last hidden states (EAGLE-1) or outputs of `layers_wanted`, which
        `fc_norm` norms each, `norm_before_fc` all together."""
        if not aux:
            return hidden
        inputs = torch.cat(aux, -1)
        if self._option("fc_norm"):
            parts = enumerate(inputs.chunk(len(self.layer_inputs), -1))
            inputs = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in parts], -1)
        elif self._option("norm_before_fc"):
            inputs = self._norm(inputs, "input_norm")
        return self.weights.linear(inputs, "fc.weight")

    def __call__(self, features: Tensor, ids: Tensor, positions: Tensor) -> Tensor:
        """Features [1, n, H] at positions 0 … n - 1 and the next tokens [1, n] → features [1, n, H]."""
        own = self.own_embeddings and "embed_tokens.weight" in self.weights.tensors
        embedded = F.embedding(ids, self.weights["embed_tokens.weight"]) if own else self.base.embed_tokens(ids)
        if self.layer_inputs:
            x = self._first_eagle3_layer(features, embedded)
        else:
            bias = self.weights["fc.bias"] if self.bias else None
            x = self.weights.linear(torch.cat([embedded, features], -1), "fc.weight", bias)
            x = self._layer(x, x, "layers.0.")
        for index in range(1, self.config["num_hidden_layers"]):
            x = self._layer(self._norm(x, f"layers.{index}.input_layernorm"), x, f"layers.{index}.")
        return self._norm(x, "norm") if self._option("norm_output") else x

    def logits(self, features: Tensor) -> Tensor:
        """[..., H] → [..., V'], by the draft's own lm_head or, in EAGLE-1, the target's."""
        if self.config.get("tie_word_embeddings"):
            raise ValueError(
                "config.json: tie_word_embeddings is true: the server would use the embeddings as the lm_head."
            )
        if not self.layer_inputs:
            return self.base.logits(features)
        normed = features if self._option("norm_output") else self._norm(features, "norm")
        return self.weights.linear(normed, "lm_head.weight")

    def to_target(self, ids: Tensor) -> Tensor:
        return self.target_ids.to(ids.device)[ids]

    def _first_eagle3_layer(self, features: Tensor, embedded: Tensor) -> Tensor:
        normed = self._norm(features, "layers.0.hidden_norm")
        both = torch.cat([self._norm(embedded, "layers.0.input_layernorm"), normed], -1)
        return self._layer(both, normed if self.residual_after_norm else features, "layers.0.")

    def _layer(self, x: Tensor, residual: Tensor, prefix: str) -> Tensor:
        """Attention and MLP, each added to the residual; x is already normed."""
        w = self.weights
        residual = residual + self._attention(x, f"{prefix}self_attn.")
        x = self._norm(residual, f"{prefix}post_attention_layernorm")
        gated = F.silu(w.linear(x, f"{prefix}mlp.gate_proj.weight")) * w.linear(x, f"{prefix}mlp.up_proj.weight")
        return residual + w.linear(gated, f"{prefix}mlp.down_proj.weight")

    def _attention(self, x: Tensor, prefix: str) -> Tensor:
        """Causal self-attention, x [1, n, width] → [1, n, H], positions 0 … n - 1."""
        heads, keys = self.config["num_attention_heads"], self.config["num_key_value_heads"]
        dim = self.config.get("head_dim") or self.config["hidden_size"] // heads

        def projected(name: str, count: int) -> Tensor:
            """[1, count, n, dim]"""
            return self.weights.linear(x, f"{prefix}{name}.weight").unflatten(-1, (count, dim)).transpose(1, 2)

        q, k, v = projected("q_proj", heads), projected("k_proj", keys), projected("v_proj", keys)
        k, v = (tensor.repeat_interleave(heads // keys, 1) for tensor in (k, v))
        mixed = F.scaled_dot_product_attention(rotated(q, self.config), rotated(k, self.config), v, is_causal=True)
        return self.weights.linear(mixed.transpose(1, 2).flatten(2), f"{prefix}o_proj.weight")

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.config["rms_norm_eps"])

    def _option(self, name: str) -> bool:
        """The value of an EAGLE-3.1 option; False if this server does not read it."""
        return self.eagle31 and bool(self.config.get(name))


@dataclass
class ParallelDraft(LlamaDraft):
    """P-EAGLE: positions after the text read `mask_token_id`, and `mask_hidden` [3H] in place of hidden states."""

    mask_token_id: int = 0

    def mask_feature(self) -> Tensor:
        """[1, 1, H]"""
        return self.fuse(None, (self.weights["mask_hidden"].view(1, 1, -1),))


def rotated(x: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Rotary embedding of x [..., n, d] at positions 0 … n - 1, pairs (i, i + d/2), scaled as in transformers."""
    half = x.shape[-1] // 2
    theta, factor = float(config.get("rope_theta", 10000.0)), 1.0
    frequencies = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    scaling = config.get("rope_scaling")
    if scaling and scaling["rope_type"] == "divided":
        frequencies = frequencies / scaling["divisors"]
    elif scaling:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        names = ("hidden_size", "num_attention_heads", "head_dim", "max_position_embeddings")
        scaling = {"rope_theta": theta, "rope_scaling": dict(config["rope_scaling"])}
        rotary = LlamaRotaryEmbedding(
            LlamaConfig(**{name: config[name] for name in names if name in config}, **scaling)
        )
        frequencies, factor = rotary.inv_freq.float(), float(rotary.attention_scaling)
    angle = torch.arange(x.shape[-2], dtype=torch.float32)[:, None] * frequencies
    rotation = torch.polar(torch.full_like(angle, factor), angle).to(x.device)
    result = torch.complex(x[..., :half], x[..., half:]) * rotation
    return torch.cat([result.real, result.imag], -1)


def eagle_vllm(folder: Path, checkpoint: CheckpointFiles) -> LlamaDraft:
    """EagleLlamaForCausalLM: LlamaModel.fc has no bias; embeddings in the file are used."""
    config, weights = open_folder(folder)
    return LlamaDraft(config, weights, (), torch.arange(config["vocab_size"]), own_embeddings=True)


def eagle_sglang(folder: Path, checkpoint: CheckpointFiles) -> LlamaDraft:
    """LlamaForCausalLMEagle: LlamaModel.fc has a bias; embeddings are the target's."""
    config, weights = open_folder(folder)
    return LlamaDraft(config, weights, (), torch.arange(config["vocab_size"]), own_embeddings=False, bias=True)


def eagle3_vllm(folder: Path, checkpoint: CheckpointFiles) -> LlamaDraft:
    """Layer ids are passed to the target unchanged: inputs of these layers. t2d is ignored."""
    config, weights = open_folder(folder)
    ids = config.get(IDS) or config.get("eagle_config", {}).get(IDS) or _default_layers(checkpoint)
    targets, residual = target_ids_of(config, weights, "t2d"), config.get("norm_before_residual", False)
    return LlamaDraft(config, weights, tuple(ids), targets, True, residual_after_norm=residual, eagle31=True)


def eagle3_speculators(folder: Path, checkpoint: CheckpointFiles) -> LlamaDraft:
    """d2t and t2d are buffers if draft_vocab_size differs from the layer's vocab_size; layer ids as in vLLM."""
    config, weights = open_folder(folder)
    options = {name: config[name] for name in ("draft_vocab_size", "norm_before_fc", "fc_norm", "norm_output")}
    layer = {**config["transformer_layer_config"], **options}
    targets, residual = target_ids_of(layer, weights, "t2d"), config["norm_before_residual"]
    if "t2d" in weights.tensors and not torch.equal(weights["t2d"].nonzero().flatten(), targets.sort().values):
        raise ValueError("model.safetensors: t2d and d2t contain different tokens.")
    ids = tuple(config.get(IDS) or _default_layers(checkpoint))
    return LlamaDraft(layer, weights, ids, targets, True, residual_after_norm=residual, eagle31=True)


def peagle_vllm(folder: Path, checkpoint: CheckpointFiles) -> ParallelDraft:
    """With `parallel_drafting`; the mask token is `mask_token_id`, else `pard_token` or `ptd_token_id`."""
    return _parallel(eagle3_vllm(folder, checkpoint), read_json(folder / "config.json"))


def peagle_speculators(folder: Path, checkpoint: CheckpointFiles) -> ParallelDraft:
    config = read_json(folder / "config.json")
    if config["speculators_model_type"] != "peagle":
        raise ValueError("config.json: speculators_model_type must be peagle.")
    return _parallel(eagle3_speculators(folder, checkpoint), config)


def _parallel(draft: LlamaDraft, config: Mapping[str, Any]) -> ParallelDraft:
    return ParallelDraft(**vars(draft), mask_token_id=config["mask_token_id"])


def eagle3_sglang(folder: Path, checkpoint: CheckpointFiles) -> LlamaDraft:
    """set_eagle3_layers_to_capture adds one to the ids of eagle_config; hot_token_id = d2t + arange."""
    config, weights = open_folder(folder)
    outputs = config.get("eagle_config", {}).get(IDS)
    ids = tuple(layer + 1 for layer in outputs) if outputs else _default_layers(checkpoint)
    return LlamaDraft(config, weights, ids, target_ids_of(config, weights, "t2d"), False, eagle31=True)


eagle3_modelopt = eagle3_sglang
"""ModelOpt is not a server; SGLang reads its exports."""


def eagle3_trtllm(folder: Path, checkpoint: CheckpointFiles) -> LlamaDraft:
    """Outputs of the layers in the YAML. d2t is a parameter only if draft_vocab_size differs from vocab_size. Of the
    options of EAGLE-3.1, `norm_before_fc` is read in eagle_config."""
    config, weights = open_folder(folder)
    config["norm_before_fc"] = config["eagle_config"].get("norm_before_fc")
    ids = tuple(layer + 1 for layer in sorted(checkpoint.aux_layers))
    return LlamaDraft(config, weights, ids, target_ids_of(config, weights), False, eagle31=True)


def open_folder(folder: Path) -> tuple[dict[str, Any], Weights]:
    config = read_json(folder / "config.json")
    return config, Weights(folder / "model.safetensors", config.get(CONFIG))


def _default_layers(checkpoint: CheckpointFiles) -> tuple[int, int, int]:
    """The defaults of the targets' get_eagle3_aux_hidden_state_layers: inputs of these layers."""
    n = checkpoint.base_layers
    return (2, n // 2, n - 3)


def target_ids_of(config: Mapping[str, Any], weights: Weights, *skipped: str) -> Tensor:
    """Token id of the base model for every column; `skipped` are tensors that the loader ignores."""
    weights.used.update(name for name in skipped if name in weights.tensors)
    columns = torch.arange(config.get("draft_vocab_size") or config["vocab_size"])
    if len(columns) == config["vocab_size"]:
        return columns
    return columns + weights["d2t"]


@dataclass
class Medusa:
    """Medusa heads: x + silu(Wx + b) for each block, then the head's matrix. `block` and `matrix` are patterns of
    tensor names with head and layer; not `biased`: the server ignores a stored bias."""

    weights: Weights
    heads: int
    layers: int
    block: str
    matrix: str
    target_ids: Tensor
    biased: bool = True

    def logits(self, head: int, hidden: Tensor) -> Tensor:
        """The base model's last hidden states [n, H] → [n, V'] of one head (0-based)."""
        x = hidden
        for layer in range(self.layers):
            name = self.block.format(head=head, layer=layer)
            bias = self.weights[f"{name}.bias"] if self.biased else None
            x = x + F.silu(self.weights.linear(x, f"{name}.weight", bias))
        return self.weights.linear(x, self.matrix.format(head=head, layers=self.layers))


def medusa_vllm(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """MedusaConfig reads the number of heads (layers) from the last key that contains `num` and `heads` (`layers`).
    With `original_lm_head` all heads share lm_heads.0."""
    config, weights = open_folder(folder)

    def last(noun: str, default: int) -> int:
        return [default, *(value for key, value in config.items() if "num" in key and noun in key)][-1]

    vocabulary = config.get("vocab_size", 32001)
    matrix = "lm_heads.0.weight" if config.get("original_lm_head") else "lm_heads.{head}.weight"
    if config.get("truncated_vocab_size") not in (None, vocabulary):
        raise ValueError("config.json: truncated_vocab_size: vLLM loads heads with the whole vocabulary only.")
    block, biased = "blocks.{head}.layers.{layer}", bool(config.get("medusa_fc_bias"))
    return Medusa(weights, last("heads", 5), last("layers", 1), block, matrix, torch.arange(vocabulary), biased)


def medusa_medusa(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """TGI: no `architectures`, `{h}.{l}.linear` and `{h}.{L}`; the repository: no `model_type`."""
    config = read_json(folder / "config.json")
    for key in ("architectures", "model_type"):
        if key in config:
            raise ValueError(f"config.json: {key} must not be set.")
    return _medusa_repository(config, folder, checkpoint)


def medusa_trtllm(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """config.py and model.py read the number of heads from different keys, which must agree."""
    config = read_json(folder / "config.json")
    if config["num_medusa_heads"] != config["medusa_num_heads"]:
        raise ValueError("config.json: num_medusa_heads and medusa_num_heads differ.")
    return _medusa_repository(config, folder, checkpoint)


def _medusa_repository(config: Mapping[str, Any], folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """Raises ValueError unless the pickled state dict contains the same tensors, bit for bit."""
    weights, path = Weights(folder / "medusa_lm_head.safetensors"), folder / "medusa_lm_head.pt"
    pickled = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if different := sorted(pickled.keys() ^ weights.tensors.keys()):
        raise ValueError(f"{path.name}: {different[0]} is in only one of {path.name} and {weights.path.name}.")
    for name, value in weights.tensors.items():
        if not torch.equal(pickled[name], value):
            raise ValueError(f"{path.name}: {name} differs from {weights.path.name}.")
    heads, layers = config["medusa_num_heads"], config["medusa_num_layers"]
    targets = torch.arange(checkpoint.vocab_size)
    return Medusa(weights, heads, layers, "{head}.{layer}.linear", "{head}.{layers}.weight", targets)


def draft_huggingface(folder: Path, checkpoint: CheckpointFiles) -> Any:
    """AutoModelForCausalLM.from_pretrained in float32, without quantized activations. Raises ValueError for missing or
    unexpected weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if quantized := loading_config(read_json(folder / "config.json")).get(CONFIG):
        config.quantization_config = quantized
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "output_loading_info": True}
    model, info = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info[kind])):
            raise ValueError(f"model.safetensors: {kind.replace('_', ' ')}: {names[0]}.")
    return (finish_loading(model, torch.float32) if quantized else model).eval()
