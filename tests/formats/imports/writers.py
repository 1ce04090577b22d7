"""Write tiny drafts with random weights as other projects do, under the names that those projects document."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN, WIDE, HEADS, KEYS, LAYERS, VOCABULARY = 32, 64, 4, 2, 4, 320
LLAMA = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"type": "linear", "factor": 2.0}
Tensors = dict[str, Tensor]


class Random:
    """Named random tensors, the same for the same seed."""

    def __init__(self, seed: int = 0):
        self.generator = torch.Generator().manual_seed(seed)

    def matrix(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator) * 0.2

    def norm(self, size: int) -> Tensor:
        return 1 + 0.3 * torch.randn(size, generator=self.generator)


def layer(random: Random, prefix: str, config: dict[str, Any], width: int, *, biases: str = "", qk: bool = False):
    """Attention reading `width` channels and a SwiGLU, under Llama's names. `biases`: which of "qkv", "o", "mlp"."""
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes = {
        **{"self_attn.q_proj": (queries, width), "self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width)},
        **{"self_attn.o_proj": (hidden, queries)},
        **{"mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide)},
    }
    tensors = {f"{prefix}{name}.weight": random.matrix(*shape) for name, shape in shapes.items()}
    tensors[f"{prefix}post_attention_layernorm.weight"] = random.norm(hidden)
    projections = {
        "qkv": ("q_proj", "k_proj", "v_proj"),
        "o": ("o_proj",),
        "mlp": ("gate_proj", "up_proj", "down_proj"),
    }
    for name, shape in shapes.items():
        if any(name.endswith(part) for kind in biases.split() for part in projections[kind]):
            tensors[f"{prefix}{name}.bias"] = random.matrix(shape[0])
    if qk:
        tensors |= {f"{prefix}self_attn.{name}_norm.weight": random.norm(dim) for name in ("q", "k")}
    return tensors


def eagle(**options: Any) -> tuple[dict[str, Any], Tensors]:
    """EAGLE-1 as the EAGLE repository saves it. Options: `layers`, `fc_bias`, `biases`, `table` [V, H], `config`."""
    random, config = Random(1), {**LLAMA, "num_hidden_layers": options.get("layers", 1), **options.get("config", {})}
    hidden = config["hidden_size"]
    tensors: Tensors = {"fc.weight": random.matrix(hidden, 2 * hidden)}
    if options.get("fc_bias"):
        tensors["fc.bias"] = random.matrix(hidden)
    for index in range(config["num_hidden_layers"]):
        tensors |= layer(random, f"layers.{index}.", config, hidden, biases=options.get("biases", ""))
        if index:
            tensors[f"layers.{index}.input_layernorm.weight"] = random.norm(hidden)
    if "table" in options:
        tensors["embed_tokens.weight"] = options["table"]
    return config, tensors


def eagle3(**options: Any) -> tuple[dict[str, Any], Tensors]:
    """EAGLE-3. Options: `first` (the first layer's name), `draft_ids`, `marked` (with t2d), `layers`, `biases`, `qk`,
    `fc_bias`, `table`, `each` / `joined` (norms before fc), `fused` (layers fused), `config`, `target`."""
    random, config = Random(2), {**LLAMA, "num_hidden_layers": options.get("layers", 1), **options.get("config", {})}
    hidden, first = config["hidden_size"], options.get("first", "midlayer.")
    target, fused = options.get("target", hidden), options.get("fused", 3)
    ids = options.get("draft_ids")
    rows = config["vocab_size"] if ids is None else len(ids)
    config["draft_vocab_size"] = rows
    tensors: Tensors = {"fc.weight": random.matrix(hidden, fused * target), "norm.weight": random.norm(hidden)}
    tensors["lm_head.weight"] = random.matrix(rows, hidden)
    for index in range(config["num_hidden_layers"]):
        prefix = first if index == 0 else f"layers.{index}."
        width = hidden if index else 2 * hidden
        layer_options = {"biases": options.get("biases", ""), "qk": options.get("qk", False)}
        tensors |= layer(random, prefix, config, width, **layer_options)
        tensors[f"{prefix}input_layernorm.weight"] = random.norm(hidden)
    tensors[f"{first}hidden_norm.weight"] = random.norm(hidden)
    if options.get("fc_bias"):
        tensors["fc.bias"] = random.matrix(hidden)
    if options.get("each"):
        tensors |= {f"fc_norm.{i}.weight": random.norm(target) for i in range(fused)}
    if options.get("joined"):
        tensors["input_norm.weight"] = random.norm(fused * target)
    if ids is not None:
        tensors["d2t"] = ids - torch.arange(rows)
    if options.get("marked"):
        tensors["t2d"] = torch.zeros(config["vocab_size"], dtype=torch.bool)
        tensors["t2d"][torch.arange(config["vocab_size"]) if ids is None else ids] = True
    if "table" in options:
        tensors["embed_tokens.weight"] = options["table"]
    return config, tensors


def speculators(**options: Any) -> tuple[dict[str, Any], Tensors]:
    """EAGLE-3 as speculators saves it: the layer's config in a section of its own."""
    config, tensors = eagle3(first="layers.0.", **options)
    top = {"draft_vocab_size": config.pop("draft_vocab_size"), "norm_before_residual": True}
    verifier = {"name_or_path": "org/base", "architectures": ["LlamaForCausalLM"]}
    return {
        "speculators_model_type": "eagle3",
        "architectures": ["Eagle3DraftModel"],
        "transformer_layer_config": config,
        "speculators_config": {"algorithm": "eagle3", "verifier": verifier},
        **{"fc_norm": bool(options.get("each")), "norm_before_fc": bool(options.get("joined")), "norm_output": False},
        **top,
        **options.get("top", {}),
    }, tensors


def peagle(**options: Any) -> tuple[dict[str, Any], Tensors]:
    """P-EAGLE as speculators saves it. `depths`: tokens of the proposal method, None: without one."""
    config, tensors = speculators(**options)
    depths = options.get("depths", 4)
    proposals = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": depths}]} if depths else {}
    config["speculators_config"] |= {"algorithm": "peagle", **proposals}
    names = {"speculators_model_type": "peagle", "architectures": ["PEagleDraftModel"], "mask_token_id": 9}
    tensors["mask_hidden"] = Random(5).matrix(1, 1, tensors["fc.weight"].shape[1])
    return {**config, **names, "norm_before_residual": False}, tensors


def vllm_peagle() -> tuple[dict[str, Any], Tensors]:
    """EAGLE-3 for vLLM's parallel drafting."""
    config, tensors = eagle3(first="layers.0.")
    tensors["mask_hidden"] = Random(5).matrix(1, tensors["fc.weight"].shape[1])
    return {**config, "architectures": ["Eagle3LlamaForCausalLM"], "ptd_token_id": 9}, tensors


def medusa(**options: Any) -> tuple[dict[str, Any], Tensors]:
    """Heads as the Medusa repository saves them. Options: `heads`, `layers`, `prefix`, `matrices` (False: its v2)."""
    random, heads, layers = Random(3), options.get("heads", 3), options.get("layers", 1)
    prefix, tensors = options.get("prefix", ""), {}
    for head in range(heads):
        for at in range(layers):
            tensors[f"{prefix}{head}.{at}.linear.weight"] = random.matrix(HIDDEN, HIDDEN)
            tensors[f"{prefix}{head}.{at}.linear.bias"] = random.matrix(HIDDEN)
        if options.get("matrices", True):
            tensors[f"{prefix}{head}.{layers}.weight"] = random.matrix(VOCABULARY, HIDDEN)
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers, "base_model_name_or_path": "org/base"}
    return config, tensors


def vllm_medusa(**options: Any) -> tuple[dict[str, Any], Tensors]:
    """Heads as vLLM reads them. Options: `bias`, `token_map`, `single` (one matrix for all heads)."""
    random, tensors = Random(4), {}
    ids = options.get("token_map")
    rows = VOCABULARY if ids is None else len(ids)
    for head in range(2):
        tensors[f"blocks.{head}.layers.0.weight"] = random.matrix(HIDDEN, HIDDEN)
        if options.get("bias", True):
            tensors[f"blocks.{head}.layers.0.bias"] = random.matrix(HIDDEN)
        if head == 0 or not options.get("single"):
            tensors[f"lm_heads.{head}.weight"] = random.matrix(rows, HIDDEN)
    config = {"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": HIDDEN}
    config |= {"vocab_size": VOCABULARY, "num_heads": 2, "num_hidden_layers": 1, "truncated_vocab_size": rows}
    config |= {"medusa_fc_bias": options.get("bias", True), "original_lm_head": bool(options.get("single"))}
    if ids is not None:
        tensors["token_map"] = ids
    return config, tensors


def write(
    folder: Path, published: tuple[dict[str, Any], Tensors], file: str = "model.safetensors", **changes: Any
) -> Path:
    """Write config and weights into `folder`, as a pickle if the name ends in .bin or .pt."""
    folder.mkdir(parents=True, exist_ok=True)
    config, tensors = published
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    if file.endswith(".safetensors"):
        save_file({name: value.contiguous() for name, value in tensors.items()}, folder / file)
    else:
        torch.save(tensors, folder / file)
    return folder


def changed(published: tuple[dict[str, Any], Tensors], change: Callable[[dict[str, Any], Tensors], None]) -> Any:
    """A copy of `published` after `change(config, tensors)`."""
    config, tensors = dict(published[0]), dict(published[1])
    change(config, tensors)
    return config, tensors
