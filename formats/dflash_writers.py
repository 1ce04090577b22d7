"""The tensors and the config of DFlash exports, as each server loads them. No torch at import.

All servers have the names of z-lab/dflash: Qwen 3 layers with norms of queries and keys, `fc`, `hidden_norm`, `norm`.
Layer ids are those of z-lab (outputs, 0-based), except in speculators and GGUF files, which count inputs (output + 1).
Attention within a block has no causal mask; where a server has an option for it, it is written."""

import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.gguf_models import gguf_name, size_keys
from formats.gguf_writers import absolute_ids
from formats.plan import ExportPlan, TensorSource, constant, from_entry
from formats.writers import layer_config, speculators_header
from models.identity import first_set

GGUF_NAMES = {"fc": "fc", "hidden_norm": "enc.output_norm", "norm": "output_norm", "lm_head": "output"}
"""{module of a draft: llama.cpp's name of it, where it is not the name in a model}."""


def dflash_vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The layout of z-lab/dflash with a draft vocabulary, for vLLM's method `dflash`: it adds one to the layer ids."""
    tensors = [from_entry(entry) for entry in checkpoint.tensors.values()]
    return ExportPlan(tensors, {**_zlab_config(checkpoint), "draft_vocab_size": checkpoint.draft_vocab_size})


def dflash_sglang(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The layout of z-lab/dflash, which also the package of that project reads."""
    return ExportPlan([from_entry(entry) for entry in checkpoint.tensors.values()], _zlab_config(checkpoint))


def dflash_speculators(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Layer ids count inputs. vLLM reads `sliding_window_non_causal` false as a causal mask in all layers, speculators
    only in layers with a sliding window: true is the same in both."""
    config = {
        **speculators_header(checkpoint, facts, "dflash", checkpoint.config["block_size"] - 1),
        "architectures": ["DFlashDraftModel"],
        "transformer_layer_config": _layers(checkpoint, "Qwen3ForCausalLM", "qwen3"),
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "block_size": checkpoint.config["block_size"],
        "mask_token_id": checkpoint.config["mask_token_id"],
        "aux_hidden_state_layer_ids": [layer + 1 for layer in checkpoint.aux_layers],
        "target_hidden_size": None,
        "sliding_window_non_causal": True,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }
    tensors = [from_entry(entry) for entry in checkpoint.tensors.values()]
    return ExportPlan([*tensors, *_target_mask(checkpoint)], config)


def dflash_huggingface(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """transformers' only class for DFlash drafts, of Muse Glimmer, whose network is z-lab's with other names."""
    renamed = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}
    tensors = [from_entry(entry, renamed.get(name, "")) for name, entry in checkpoint.tensors.items()]
    layers = _layers(checkpoint, "MuseGlimmerAssistantModel", "muse_glimmer_assistant")
    rope = {"rope_type": "default", **(layers.pop("rope_scaling") or {}), "rope_theta": layers.pop("rope_theta")}
    own = {
        "rope_parameters": rope,
        "block_size": checkpoint.config["block_size"],
        "mask_token_id": checkpoint.config["mask_token_id"],
        "target_layer_ids": list(checkpoint.aux_layers),
    }
    return ExportPlan(tensors, {**layers, **own})


def dflash_gguf(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Architecture `dflash`: layer ids count inputs, the mask token is the tokenizer's, `d2t` has token ids of the base
    model. Queries and keys are in transformers' order (llama.cpp rotates channels half a head apart in drafts)."""
    config = dict(checkpoint.config)
    config["max_position_embeddings"] = first_set(checkpoint.base, "max_position_embeddings", "n_positions")
    sources: list[TensorSource] = []
    for name, entry in checkpoint.tensors.items():
        if name == "d2t":
            sources.append(absolute_ids(from_entry(entry)))
        else:
            own = GGUF_NAMES.get(name.removesuffix(".weight"))
            sources.append(from_entry(entry, f"{own}.weight" if own else gguf_name(name)))
    keys = {
        "general.architecture": "dflash",
        **size_keys("dflash", config, config["dflash_num_layers"], checkpoint.vocab_size),
        "dflash.block_size": config["block_size"],
        "dflash.target_layers": [layer + 1 for layer in checkpoint.aux_layers],
        "dflash.sample_from_anchor": False,
        "dflash.attention.causal": False,
        "tokenizer.ggml.mask_token_id": config["mask_token_id"],
    }
    return ExportPlan(sources, keys, weights="draft-f32.gguf", tokenizer=checkpoint.base_path)


def _layers(checkpoint: CheckpointFiles, architecture: str, model_type: str) -> dict[str, Any]:
    count = checkpoint.config["dflash_num_layers"]
    return {
        **layer_config(checkpoint, architecture),
        "model_type": model_type,
        "num_hidden_layers": count,
        "layer_types": ["full_attention"] * count,
        "attention_bias": bool(checkpoint.config.get("attention_bias")),
    }


def _zlab_config(checkpoint: CheckpointFiles) -> dict[str, Any]:
    return {
        **_layers(checkpoint, "DFlashDraftModel", "qwen3"),
        "sliding_window": None,
        "use_sliding_window": False,
        "num_target_layers": checkpoint.base_layers,
        "block_size": checkpoint.config["block_size"],
        "dflash_config": {
            "mask_token_id": checkpoint.config["mask_token_id"],
            "target_layer_ids": list(checkpoint.aux_layers),
        },
    }


def _target_mask(checkpoint: CheckpointFiles) -> list[TensorSource]:
    """t2d, bool [V]: the tokens in the draft vocabulary; [] for a whole one."""
    if not checkpoint.small_vocabulary:
        return []
    ids = absolute_ids(from_entry(checkpoint.tensors["d2t"]))

    def chunks() -> Iterator[bytes]:
        mask = bytearray(checkpoint.vocab_size)
        for token in array.array("q", b"".join(ids.chunks())):
            mask[token] = 1
        yield bytes(mask)

    return [replace(constant("t2d", "BOOL", (checkpoint.vocab_size,), b""), chunks=chunks)]
