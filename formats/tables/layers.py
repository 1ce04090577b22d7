"""Tables of what one Llama decoder layer of a draft consists of, and of the config that describes it, as servers ask
for them. Written from their source, not from the writers. No torch.
"""

from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.table import FLOAT
from models.card import first

Shapes = dict[str, tuple[tuple[int, ...], str]]


def layer(checkpoint: CheckpointFiles, index: int, width: int) -> Shapes:
    """Attention over inputs `width` wide, and the MLP, with the norm between; norms before it are the caller's."""
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
    """What LlamaConfig and the servers' Llama classes read."""
    c, base = checkpoint.config, checkpoint.base
    bos = base.get("bos_token_id")
    return {
        **{"architectures": [architecture], "model_type": "llama", "num_hidden_layers": layers},
        **{"hidden_size": c["hidden_size"], "intermediate_size": c["intermediate_size"]},
        **{"num_attention_heads": c["num_attention_heads"], "num_key_value_heads": c["num_key_value_heads"]},
        **{"head_dim": c["head_dim"], "vocab_size": c["vocab_size"], "rms_norm_eps": c["rms_norm_eps"]},
        **{"rope_theta": c["rope_theta"], "rope_scaling": c.get("rope_scaling"), "hidden_act": "silu"},
        **{"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "use_cache": True},
        "max_position_embeddings": int(first(base, "max_position_embeddings", "n_positions") or 2048),
        "bos_token_id": bos[0] if isinstance(bos, list) and bos else bos,
        "eos_token_id": base.get("eos_token_id"),
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }


WHY = {
    "tie_word_embeddings": "true makes SGLang take the embeddings for the draft's head",
    "head_dim": "without it servers divide hidden size by heads",
    "rope_theta": "without it servers take 10000",
    "vocab_size": "servers have defaults of their own",
    "d2t": "the server would take draft ids for token ids",
    "t2d": "SpecForge's and speculators' loaders ask for it",
    "fc.bias": "SGLang would leave the bias as memory was",
    "embed_tokens.weight": "embeddings were never trained; the server takes the target's",
    "eagle_aux_hidden_state_layer_ids": "wrong ids fuse neighbouring layers, and few tokens are accepted",
}
