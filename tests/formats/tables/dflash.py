"""Tensors and config that the DFlash classes of vLLM, speculators, SGLang and transformers load."""

from typing import Any

from formats.checkpoint import CheckpointFiles
from tests.formats.table import FLOAT, TensorTable
from tests.formats.tables import layers


def vllm(checkpoint: CheckpointFiles) -> TensorTable:
    """DFlashQwen3ForCausalLM; layer ids count outputs, to which vLLM adds one."""
    config = {**_zlab(checkpoint), "draft_vocab_size": checkpoint.draft_vocab_size}
    return TensorTable(_tensors(checkpoint, "d2t"), config, checkpoint.written_type)


def sglang(checkpoint: CheckpointFiles) -> TensorTable:
    """DFlashDraftModel; layer ids count outputs."""
    return TensorTable(_tensors(checkpoint), _zlab(checkpoint), checkpoint.written_type)


def speculators(checkpoint: CheckpointFiles) -> TensorTable:
    """DFlashDraftModel of speculators; layer ids count inputs, the layers' config is nested."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "verifier": {"architectures": checkpoint.base.get("architectures") or []},
        },
        "transformer_layer_config": _layers(checkpoint, "Qwen3ForCausalLM", "qwen3"),
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "block_size": checkpoint.config["block_size"],
        "mask_token_id": checkpoint.config["mask_token_id"],
        "aux_hidden_state_layer_ids": [i + 1 for i in checkpoint.aux_layers],
        "target_hidden_size": None,
        "sliding_window_non_causal": True,
        "sample_from_anchor": False,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }
    free = ("speculators_version", "speculators_config.proposal_methods", "speculators_config.verifier.name_or_path")
    return TensorTable(_tensors(checkpoint, "d2t", "t2d"), config, checkpoint.written_type, frozenset(free))


def huggingface(checkpoint: CheckpointFiles) -> TensorTable:
    """MuseGlimmerAssistantModel; layer ids count outputs."""
    config = _layers(checkpoint, "MuseGlimmerAssistantModel", "muse_glimmer_assistant")
    theta = config.pop("rope_theta")
    config |= {
        "rope_parameters": {"rope_type": "default", **(config.pop("rope_scaling") or {}), "rope_theta": theta},
        "block_size": checkpoint.config["block_size"],
        "mask_token_id": checkpoint.config["mask_token_id"],
        "target_layer_ids": list(checkpoint.aux_layers),
    }
    tensors = _tensors(checkpoint)
    tensors["encoder.fc.weight"] = tensors.pop("fc.weight")
    tensors["encoder.output_norm_enc.weight"] = tensors.pop("hidden_norm.weight")
    return TensorTable(tensors, config, checkpoint.written_type)


def _layers(checkpoint: CheckpointFiles, architecture: str, model_type: str) -> dict[str, Any]:
    count = checkpoint.config["dflash_num_layers"]
    return {
        **layers.config(checkpoint, architecture, count),
        "model_type": model_type,
        "layer_types": ["full_attention"] * count,
        "attention_bias": checkpoint.config["attention_bias"],
    }


def _zlab(checkpoint: CheckpointFiles) -> dict[str, Any]:
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


def _tensors(checkpoint: CheckpointFiles, *maps: str) -> layers.Shapes:
    c, hidden, columns = checkpoint.config, checkpoint.hidden_size, checkpoint.draft_vocab_size
    q, kv = (c[heads] * c["head_dim"] for heads in ("num_attention_heads", "num_key_value_heads"))
    shapes: layers.Shapes = {
        "fc.weight": ((hidden, len(checkpoint.aux_layers) * hidden), FLOAT),
        "hidden_norm.weight": ((hidden,), FLOAT),
        "norm.weight": ((hidden,), FLOAT),
    }
    for index in range(c["dflash_num_layers"]):
        prefix = f"layers.{index}."
        shapes |= layers.layer(checkpoint, index, hidden)
        shapes[f"{prefix}input_layernorm.weight"] = ((hidden,), FLOAT)
        shapes |= {f"{prefix}self_attn.{name}_norm.weight": ((c["head_dim"],), FLOAT) for name in "qk"}
        if c["attention_bias"]:
            sizes = {"q": q, "k": kv, "v": kv, "o": hidden}
            shapes |= {f"{prefix}self_attn.{name}_proj.bias": ((size,), FLOAT) for name, size in sizes.items()}
    if checkpoint.small_vocabulary:
        shapes["lm_head.weight"] = ((columns, hidden), FLOAT)
        stored = {"d2t": ((columns,), "I64"), "t2d": ((checkpoint.vocab_size,), "BOOL")}
        shapes |= {name: stored[name] for name in maps}
    return shapes
