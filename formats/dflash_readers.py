"""DFlash drafts as servers build them, in plain torch or by transformers; see `formats.readers`. They use neither the
writers nor the workbench's network.

Shapes: L positions of context, S tokens of a block, H hidden size, V' columns."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from formats.checkpoint import CheckpointFiles
from formats.gguf_readers import open_gguf, rope_scaling
from formats.proof import DEPTH, Passage, difference, rounded_features
from formats.readers import Weights, open_folder, rotated, target_ids_of
from models.block_attention import BlockBackend
from models.logits import apply_logit_rule

GGUF_MODULES = {
    "fc": "fc",
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""{module of a DFlash draft: its name in a GGUF file}."""


class _Sides:
    """The draft and an export on the blocks of a passage; see `formats.proof.compare_drafts`. Servers do not apply the
    base model's scale or cap of logits to drafts, which does not change their order; here it is applied to compare."""

    def __init__(self, draft: Any, reader: "BlockDraft", base: Any):
        self.draft, self.reader, self.base, self.rounding = draft, reader, base, 0.0
        wanted, count = reader.layers_wanted, base.num_layers
        if invalid := [layer for layer in wanted if not 0 <= layer < count]:
            raise ValueError(f"layers {list(wanted)}: the base model has no layer {invalid[0]}.")
        if (reader.block_size, reader.mask_token_id) != (draft.block_size, draft.config.mask_token_id):
            raise ValueError(
                f"block_size {reader.block_size} or mask_token_id {reader.mask_token_id} differs from the draft's."
            )
        self.layers = (*draft.layers_wanted, *wanted)

    def logits(self, passage: Passage) -> Iterator[tuple[Tensor, Tensor]]:
        for anchor in passage.anchors:
            aux = _joined(passage, self.draft.layers_wanted, anchor + 1)
            expected = self._expected(aux, passage.ids[anchor + 1])
            rounded = self._expected(rounded_features(aux), passage.ids[anchor + 1])
            self.rounding = max(self.rounding, difference(expected, rounded))
            yield expected, self._actual(passage, anchor)

    def chain(self, passage: Passage, anchor: int) -> tuple[list[int], list[int]]:
        aux = _joined(passage, self.draft.layers_wanted, anchor + 1)
        best = self._expected(aux, passage.ids[anchor + 1])[:DEPTH].argmax(-1)
        actual = self._actual(passage, anchor)[:DEPTH].argmax(-1).to(self.reader.target_ids.device)
        return self.draft.to_target(best).tolist(), self.reader.target_ids[actual].tolist()

    def _expected(self, aux: Tensor, token: int) -> Tensor:
        """[S - 1, V'] of the draft, from the features [L, layers · H] before the known token."""
        draft, length, device = self.draft, len(aux), aux.device
        backend = BlockBackend(torch.zeros(1, dtype=torch.int64), torch.tensor([length]), 1)
        positions = torch.arange(length + draft.block_size, device=device)[None]
        context = draft.fuse(aux[None]), positions[:, :length]
        ids = draft.block_ids(torch.tensor([token], device=device))
        return draft.logits(draft(ids, positions[:, length:], backend, context)[0, 1:])

    def _actual(self, passage: Passage, anchor: int) -> Tensor:
        reader, token = self.reader, passage.ids[anchor + 1]
        ids = torch.tensor([token] + [reader.mask_token_id] * (reader.block_size - 1), device=passage.hidden.device)
        aux = _joined(passage, reader.layers_wanted, anchor + 1)
        x = reader.outputs(aux, self.base.embed_tokens(ids))[1:]
        if not reader.own_head:
            return self.base.logits(x)
        return apply_logit_rule(reader.weights.linear(x, "lm_head.weight"), self.base.logit_rule)


def _joined(passage: Passage, layers: tuple[int, ...], rows: int) -> Tensor:
    return torch.cat([passage.outputs[layer][:rows] for layer in layers], -1)


@dataclass
class BlockDraft:
    """Qwen 3 layers over a block of tokens; keys and values of the context are projections of its fused features.
    `layers_wanted`: base layers (0-based) whose outputs are fused. Without `own_head` logits are by the target's."""

    config: Mapping[str, Any]
    weights: Weights
    layers_wanted: tuple[int, ...]
    block_size: int
    mask_token_id: int
    target_ids: Tensor
    own_head: bool
    sides: Any = field(default=_Sides, repr=False)

    def outputs(self, aux: Tensor, embedded: Tensor) -> Tensor:
        """[S, H] of a block with embeddings [S, H] after L positions with features `aux` [L, layers · H]."""
        if self.config.get("tie_word_embeddings") and self.own_head:
            raise ValueError("config.json: tie_word_embeddings is true: the server would use the embeddings.")
        context, x, w = self._norm(self.weights.linear(aux, "fc.weight"), "hidden_norm"), embedded, self.weights
        for index in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{index}."
            x = x + self._attention(self._norm(x, f"{prefix}input_layernorm"), context, f"{prefix}self_attn.")
            y = self._norm(x, f"{prefix}post_attention_layernorm")
            gated = F.silu(w.linear(y, f"{prefix}mlp.gate_proj.weight")) * w.linear(y, f"{prefix}mlp.up_proj.weight")
            x = x + w.linear(gated, f"{prefix}mlp.down_proj.weight")
        return self._norm(x, "norm")

    def _attention(self, x: Tensor, context: Tensor, prefix: str) -> Tensor:
        """Attention of a block, x [S, H], to the context [L, H] and itself, without a mask."""
        heads, keys, length = self.config["num_attention_heads"], self.config["num_key_value_heads"], len(context)
        both = torch.cat([context, x])

        def projected(rows: Tensor, name: str, count: int) -> Tensor:
            """[count, rows, d]"""
            bias = self.weights[f"{prefix}{name}.bias"] if self.config.get("attention_bias") else None
            return self.weights.linear(rows, f"{prefix}{name}.weight", bias).unflatten(-1, (count, -1)).transpose(0, 1)

        q = F.pad(self._norm(projected(x, "q_proj", heads), f"{prefix}q_norm"), (0, 0, length, 0))
        k, v = self._norm(projected(both, "k_proj", keys), f"{prefix}k_norm"), projected(both, "v_proj", keys)
        k, v = (tensor.repeat_interleave(heads // keys, 0) for tensor in (rotated(k, self.config), v))
        mixed = F.scaled_dot_product_attention(rotated(q, self.config)[:, length:], k, v)
        bias = self.weights[f"{prefix}o_proj.bias"] if self.config.get("attention_bias") else None
        return self.weights.linear(mixed.transpose(0, 1).flatten(1), f"{prefix}o_proj.weight", bias)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.config["rms_norm_eps"])


def dflash_vllm(folder: Path, checkpoint: CheckpointFiles) -> BlockDraft:
    """DFlashQwen3ForCausalLM: target_layer_ids + 1 are inputs; d2t and lm_head are read, t2d is not. `causal` in
    dflash_config, and a sliding window, would be other attention."""
    config, weights = open_folder(folder)
    return _zlab(config, weights, target_ids_of(config, weights, "t2d"), "lm_head.weight" in weights.tensors)


def dflash_sglang(folder: Path, checkpoint: CheckpointFiles) -> BlockDraft:
    """DFlashDraftModel: captures the inputs of target_layer_ids + 1; embeddings and lm_head are the target's."""
    config, weights = open_folder(folder)
    return _zlab(config, weights, torch.arange(config["vocab_size"]), False)


def _zlab(config: Mapping[str, Any], weights: Weights, targets: Tensor, own_head: bool) -> BlockDraft:
    own = config["dflash_config"]
    if own.get("causal") or own.get("use_swa") or {*config.get("layer_types", ())} - {"full_attention"}:
        raise ValueError("config.json: the server would use a causal mask or a sliding window.")
    ids, mask = tuple(own["target_layer_ids"]), own["mask_token_id"]
    return BlockDraft(config, weights, ids, config["block_size"], mask, targets, own_head)


def dflash_speculators(folder: Path, checkpoint: CheckpointFiles) -> BlockDraft:
    """Ids of inputs; vLLM drafts with a causal mask if sliding_window_non_causal is false. d2t and t2d are buffers if
    draft_vocab_size differs from the layer's vocab_size."""
    config, weights = open_folder(folder)
    if not config["sliding_window_non_causal"] or config["sample_from_anchor"]:
        raise ValueError("config.json: vLLM would use a causal mask, or draft at the known token.")
    layer = {**config["transformer_layer_config"], "draft_vocab_size": config["draft_vocab_size"]}
    targets = target_ids_of(layer, weights, "t2d")
    if "t2d" in weights.tensors and not torch.equal(weights["t2d"].nonzero().flatten(), targets.sort().values):
        raise ValueError("model.safetensors: t2d and d2t contain different tokens.")
    ids, own_head = tuple(i - 1 for i in config["aux_hidden_state_layer_ids"]), "lm_head.weight" in weights.tensors
    return BlockDraft(layer, weights, ids, config["block_size"], config["mask_token_id"], targets, own_head)


class TransformersDraft:
    """transformers' own network for DFlash drafts; the interface of BlockDraft."""

    own_head, sides = False, _Sides

    def __init__(self, model: Any):
        self.model, config = model, model.config
        self.layers_wanted = tuple(config.target_layer_ids)
        self.block_size, self.mask_token_id = config.block_size, config.mask_token_id

    def outputs(self, aux: Tensor, embedded: Tensor) -> Tensor:
        self.target_ids = torch.arange(1 << 20)  # all tokens of the target
        return self.model(noise_embeds=embedded[None], context_hidden_states=aux[None]).last_hidden_state[0]


def dflash_huggingface(folder: Path, checkpoint: CheckpointFiles) -> TransformersDraft:
    """AutoModel.from_pretrained in float32. Raises ValueError for missing or unexpected weights."""
    from transformers import AutoModel

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "output_loading_info": True}
    model, info = AutoModel.from_pretrained(folder, dtype=torch.float32, **options)
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info[kind])):
            raise ValueError(f"model.safetensors: {kind.replace('_', ' ')}: {names[0]}.")
    return TransformersDraft(model.eval())


class _GgufWeights(Weights):
    """The tensors of a GGUF file under the names that `BlockDraft` reads, de-quantized."""

    def __init__(self, path: Path, stored: Mapping[str, Tensor], layers: int):
        self.path, self.quantization, self.used = path, None, set()
        self.tensors = dict(stored)
        for ours, theirs in GGUF_MODULES.items():
            inner = "." in ours or ours.endswith("_layernorm")
            for ours_prefix, prefix in [(f"layers.{i}.", f"blk.{i}.") for i in range(layers)] if inner else [("", "")]:
                if (value := self.tensors.pop(f"{prefix}{theirs}.weight", None)) is not None:
                    self.tensors[f"{ours_prefix}{ours}.weight"] = value


def dflash_gguf(folder: Path, checkpoint: CheckpointFiles) -> BlockDraft:
    """src/models/dflash.cpp, common/speculative.cpp: target_layers are inputs, d2t are token ids; pairs of channels are
    half a head apart; the mask token is the tokenizer's."""
    path, keys, stored = open_gguf(folder)
    own = {name.removeprefix("dflash."): value for name, value in keys.items() if name.startswith("dflash.")}
    if keys["general.architecture"] != "dflash" or own.get("sample_from_anchor") or own.get("attention.causal"):
        raise ValueError(f"{path.name}: not a DFlash draft whose blocks have no causal mask.")
    weights = _GgufWeights(path, stored, own["block_count"])
    config = {
        "hidden_size": own["embedding_length"],
        "head_dim": own["attention.key_length"],
        "num_attention_heads": own["attention.head_count"],
        "num_key_value_heads": own["attention.head_count_kv"],
        "rms_norm_eps": own["attention.layer_norm_rms_epsilon"],
        "num_hidden_layers": own["block_count"],
        "rope_theta": own["rope.freq_base"],
        "rope_scaling": rope_scaling(own),
    }
    targets = weights["d2t"] if "d2t" in weights.tensors else torch.arange(len(keys["tokenizer.ggml.tokens"]))
    ids, mask = tuple(layer - 1 for layer in own["target_layers"]), keys["tokenizer.ggml.mask_token_id"]
    return BlockDraft(config, weights, ids, own["block_size"], mask, targets, "lm_head.weight" in weights.tensors)
