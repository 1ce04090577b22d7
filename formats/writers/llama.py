"""config.json of a draft with Llama layers, with transformers' keys. No torch."""

from typing import Any

from formats.checkpoint import CheckpointFiles
from models.card import first_set

SHAPES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("rms_norm_eps", "rope_theta", "vocab_size"),
)


def config(checkpoint: CheckpointFiles, architecture: str, layers: int) -> dict[str, Any]:
    """The draft's config. Rotary settings are the draft's own: drafts trained in the workbench have no rope scaling
    even if the base model has. Both keys of the type are written, since servers read one or the other."""
    return {
        "architectures": [architecture],
        "model_type": "llama",
        **{name: checkpoint.config[name] for name in SHAPES},
        "num_hidden_layers": layers,
        "max_position_embeddings": int(first_set(checkpoint.base, "max_position_embeddings", "n_positions") or 2048),
        "hidden_act": "silu",
        "rope_scaling": checkpoint.config.get("rope_scaling"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": _first(checkpoint.base.get("bos_token_id")),
        "eos_token_id": checkpoint.base.get("eos_token_id"),
        "use_cache": True,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value
