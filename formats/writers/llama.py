"""config.json of a draft whose layers are Llama's, in the words of transformers. No torch."""

from typing import Any

from formats.checkpoint import CheckpointFiles
from models.card import first

SHAPES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("rms_norm_eps", "rope_theta", "vocab_size"),
)


def config(checkpoint: CheckpointFiles, architecture: str, layers: int) -> dict[str, Any]:
    """The draft's shape. Rotary settings are the draft's own: one trained here has no scaling even where its base has.
    Both words for the type, since servers read one or the other; it is that of the tensors."""
    return {
        "architectures": [architecture],
        "model_type": "llama",
        **{name: checkpoint.config[name] for name in SHAPES},
        "num_hidden_layers": layers,
        "max_position_embeddings": int(first(checkpoint.base, "max_position_embeddings", "n_positions") or 2048),
        "hidden_act": "silu",
        "rope_scaling": checkpoint.config.get("rope_scaling"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": _one(checkpoint.base.get("bos_token_id")),
        "eos_token_id": checkpoint.base.get("eos_token_id"),
        "use_cache": True,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }


def _one(value: Any) -> Any:
    return value[0] if isinstance(value, list) and value else value
