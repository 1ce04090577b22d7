"""The tensors of one Llama decoder layer of a draft, and the config that describes it. Written from the servers'
source, not from the writers."""

from typing import Any

from formats.checkpoint import CheckpointFiles
from models.identity import first_set
from tests.formats.table import FLOAT

Shapes = dict[str, tuple[tuple[int, ...], str]]


def layer(checkpoint: CheckpointFiles, index: int, width: int) -> Shapes:
    """Attention over inputs of size `width`, the norm after it, and the MLP. The caller adds the input norms."""
    c = checkpoint.config
    hidden, inner, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    prefix = f"layers.{index}."
    return {
        f"{prefix}self_attn.q_proj.weight": ((q, width), FLOAT),
        f"{prefix}self_attn.k_proj.weight": ((kv, width), FLOAT),
        f"{prefix}self_attn.v_proj.weight": ((kv, width), FLOAT),
        f"{prefix}self_attn.o_proj.weight": ((hidden, q), FLOAT),
        f"{prefix}post_attention_layernorm.weight": ((hidden,), FLOAT),
        f"{prefix}mlp.gate_proj.weight": ((inner, hidden), FLOAT),
        f"{prefix}mlp.up_proj.weight": ((inner, hidden), FLOAT),
        f"{prefix}mlp.down_proj.weight": ((hidden, inner), FLOAT),
    }


def config(checkpoint: CheckpointFiles, architecture: str, layers: int) -> dict[str, Any]:
    """The keys that LlamaConfig and the servers' Llama classes read."""
    c, base = checkpoint.config, checkpoint.base
    bos = base.get("bos_token_id")
    return {
        "architectures": [architecture],
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": c["hidden_size"],
        "intermediate_size": c["intermediate_size"],
        "num_attention_heads": c["num_attention_heads"],
        "num_key_value_heads": c["num_key_value_heads"],
        "head_dim": c["head_dim"],
        "vocab_size": c["vocab_size"],
        "rms_norm_eps": c["rms_norm_eps"],
        "rope_theta": c["rope_theta"],
        "rope_scaling": c.get("rope_scaling"),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "use_cache": True,
        "max_position_embeddings": int(first_set(base, "max_position_embeddings", "n_positions") or 2048),
        "bos_token_id": bos[0] if isinstance(bos, list) and bos else bos,
        "eos_token_id": base.get("eos_token_id"),
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }
