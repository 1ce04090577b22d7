"""Draft networks as llama.cpp builds them from a GGUF file, like `formats.readers` for other servers: neither the
writers nor their table of names is used."""

import contextlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from formats.checkpoint import CheckpointFiles
from formats.readers import LlamaDraft, Weights
from formats.report import Check

LAYER = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
STORED = {f"layers.0.{ours}.weight": f"blk.0.{theirs}.weight" for ours, theirs in LAYER.items()} | {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "d2t": "d2t",
}
"""{name that `LlamaDraft` reads: name in the file}."""


class GgufWeights(Weights):
    """The tensors of a GGUF file under the names that `LlamaDraft` reads, de-quantized, rows of queries and keys in
    transformers' order."""

    def __init__(self, path: Path, stored: Mapping[str, Tensor], heads: Mapping[str, int]):
        self.path, self.quantization, self.used = path, None, set()
        self.tensors = {name: stored[theirs] for name, theirs in STORED.items() if theirs in stored}
        self.tensors |= {name: value for name, value in stored.items() if name not in STORED.values()}
        for ending, count in heads.items():
            name = f"layers.0.self_attn.{ending}_proj.weight"
            self.tensors[name] = _halves_apart(self[name], count)
        self.used.clear()


def eagle3_gguf(folder: Path, checkpoint: CheckpointFiles) -> LlamaDraft:
    """src/models/eagle3.cpp: target_layers are inputs, d2t are token ids. `rope_freqs` divide the frequencies."""
    path, keys, stored = open_gguf(folder)
    own = {name.removeprefix("eagle3."): value for name, value in keys.items() if name.startswith("eagle3.")}
    if keys["general.architecture"] != "eagle3" or len(own["target_layers"]) != 3 or own["block_count"] != 1:
        raise ValueError(f"{path.name}: is no EAGLE-3 draft of one layer with three target_layers.")
    heads, kv_heads = own["attention.head_count"], own["attention.head_count_kv"]
    weights = GgufWeights(path, stored, {"q": heads, "k": kv_heads})
    config = {
        "hidden_size": own["embedding_length"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": own["attention.key_length"],
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "num_hidden_layers": 1,
        "rope_theta": own["rope.freq_base"],
        "rope_scaling": rope_scaling(own),
        "norm_before_fc": own.get("norm_before_fc"),
    }
    if "rope_freqs.weight" in weights.tensors:
        config["rope_scaling"] = {"rope_type": "divided", "divisors": weights["rope_freqs.weight"]}
    rows = len(weights["lm_head.weight"])
    targets = weights["d2t"] if "d2t" in weights.tensors else torch.arange(rows)
    if rows > len(targets) or targets.max() >= len(keys["tokenizer.ggml.tokens"]):
        raise ValueError(f"{path.name}: d2t does not map every column to a token.")
    residual, layers = bool(own.get("norm_before_residual")), tuple(own["target_layers"])
    return LlamaDraft(config, weights, layers, targets, True, residual_after_norm=residual, eagle31=True)


def draft_gguf(folder: Path, checkpoint: CheckpointFiles) -> Any:
    """transformers' own reader of GGUF files, in float32, with the sizes of heads and the rope scaling that it does not
    read."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path, keys, stored = open_gguf(folder)
    prefix = keys["general.architecture"] + "."
    own = {name.removeprefix(prefix): value for name, value in keys.items() if name.startswith(prefix)}
    source: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
    config = AutoConfig.from_pretrained(folder, **source)
    config.head_dim = own["attention.key_length"]
    config.rope_parameters = {
        "rope_theta": own["rope.freq_base"],
        "partial_rotary_factor": own["rope.dimension_count"] / config.head_dim,
        **(rope_scaling(own) or {"rope_type": "default"}),
    }
    with contextlib.redirect_stderr(io.StringIO()):  # hides a progress bar that no option turns off
        model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32, **source).eval()
    if "rope_freqs.weight" in stored:
        model.model.rotary_emb.inv_freq /= stored["rope_freqs.weight"]
    return model


def round_gguf(draft: Any, reader: Any, scheme: str) -> Check:
    """Give `draft` (float32) the weights of its GGUF file, so that it should draft like the export. The check fails if
    one differs from the draft's by more than half a step of the file's type: 2^-11 of F16 values, for Q8_0 1/254 of the
    largest of 32 values and the rounding of its scale to F16."""
    standalone = draft.method == "draft"
    stored = reader.state_dict() if standalone else reader.weights.tensors
    error, norm, near = 0.0, 0.0, True
    with torch.no_grad():
        for name, weight in (draft.model if standalone else draft).named_parameters():
            value = stored[name].float()
            near &= bool(((value - weight).abs() <= 1.001 * _half_step(weight, scheme)).all())
            error, norm = error + float((value - weight).square().sum()), norm + float(weight.square().sum())
            weight.copy_(value)
    relative = (error / norm) ** 0.5 if norm else 0.0
    return Check("weights", near, f"rounding changes the weights by {relative:.1e} (root mean square)")


def _half_step(weight: Tensor, scheme: str) -> Tensor:
    half = weight.abs() / 2048 + 2.0**-25
    if scheme == "q8_0" and weight.dim() == 2 and weight.shape[1] % 32 == 0:
        blocks = weight.unflatten(1, (-1, 32))
        largest = blocks.abs().amax(-1, keepdim=True) * (1 / 254 + 1 / 2048)
        half = half + largest.expand_as(blocks).flatten(1)
    return half


def open_gguf(folder: Path) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """The export's GGUF file, its keys, and its tensors: float32, or int64 as they are."""
    path = next(folder.glob("*.gguf"))
    reader = gguf.GGUFReader(path)
    keys = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {}
    for tensor in reader.tensors:
        data = np.asarray(tensor.data)
        if tensor.tensor_type != gguf.GGMLQuantizationType.I64:
            data = gguf.quants.dequantize(data, tensor.tensor_type)
        tensors[tensor.name] = torch.from_numpy(np.array(data))
    return path, keys, tensors


def _halves_apart(rows: Tensor, heads: int) -> Tensor:
    """Rows of neighbouring pairs, in the order that rotates pairs half a head apart."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def rope_scaling(own: Mapping[str, Any]) -> dict[str, Any] | None:
    """Rope scaling of a file's keys, without the architecture, as transformers names it."""
    if not (kind := own.get("rope.scaling.type")):
        return None
    scaling = {"rope_type": kind, "factor": own["rope.scaling.factor"]}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = own["rope.scaling.original_context_length"]
        for name, key in (("beta_fast", "beta_fast"), ("beta_slow", "beta_slow"), ("attention_factor", "attn_factor")):
            scaling[name] = own.get(f"rope.scaling.yarn_{key}")
    return {name: value for name, value in scaling.items() if value is not None}
