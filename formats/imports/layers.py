"""The decoder layer of an EAGLE draft, from a Llama-like config and the tensors in the file.

Defaults are those of the EAGLE repository's config class (rms_norm_eps 1e-6, rope_theta 10000), not the base model's.
"""

import re
from typing import Any

from formats.imports.names import Fields
from formats.imports.source import DraftSource
from models.draft_layers import SCALED
from speculoos.errors import BadInput, Unsupported

LAYER = re.compile(r"layers\.(\d+)\.")
FIRST = "layers.0.self_attn"
ROPE_NUMBERS = {
    "linear": (("factor",), ()),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim"),
    ),
}
"""Required and optional keys of each kind of rope scaling."""


def layer_config(source: DraftSource, hidden: int) -> dict[str, Any]:
    """Fields of `models.draft_layers.LayerShape`. Raises BadInput if config and tensors contradict each other,
    Unsupported for an unsupported kind of layer."""
    fields = source.fields
    _check_supported(fields)
    heads = fields.number("num_attention_heads")
    keys = fields.number("num_key_value_heads", heads)
    head_dim = fields.number("head_dim", 0) or hidden // heads
    if heads % max(keys, 1) or head_dim % 2:
        raise BadInput(
            f"{source.config_name}: num_attention_heads {heads}, num_key_value_heads {keys}, head_dim {head_dim}: the "
            "first must be a multiple of the second, and the last must be even."
        )
    theta, scaling = rope(fields)
    return {
        "hidden_size": hidden,
        "intermediate_size": fields.number("intermediate_size", source.shape("layers.0.mlp.gate_proj.weight")[0]),
        "num_attention_heads": heads,
        "num_key_value_heads": keys,
        "head_dim": head_dim,
        "rms_norm_eps": fields.real("rms_norm_eps", 1e-6),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "attention_bias": source.has(f"{FIRST}.q_proj.bias"),
        "output_bias": source.has(f"{FIRST}.o_proj.bias"),
        "mlp_bias": source.has("layers.0.mlp.gate_proj.bias"),
        "qk_norm": source.has(f"{FIRST}.q_norm.weight"),
    }


def layer_count(source: DraftSource) -> int:
    """Number of layers among the tensors. Raises BadInput if num_hidden_layers is another number."""
    numbers = {int(match[1]) for name in source.entries if (match := LAYER.match(name))}
    stated = source.fields.number("num_hidden_layers", len(numbers))
    if stated != len(numbers):
        raise BadInput(
            f"{source.config_name}: num_hidden_layers is {stated}, but the tensors are of {len(numbers)} layers; "
            "restore the draft's original config.json."
        )
    return len(numbers)


def rope(fields: Fields) -> tuple[float, dict[str, Any] | None]:
    """rope_theta, and the scaling as `models.draft_layers.frequencies` takes it, from old or new transformers configs.

    Raises Unsupported for a kind of scaling that depends on the sequence length.
    """
    parameters, scaling = fields.get("rope_parameters", {}), fields.get("rope_scaling", {})
    if not isinstance(parameters, dict) or not isinstance(scaling, dict):
        raise BadInput(f"{fields.name}: rope_scaling: expected an object; restore the draft's original config.json.")
    nested = Fields(f"{fields.name}: rope_scaling", scaling, parameters)
    theta = fields.real("rope_theta", nested.real("rope_theta", 10000.0))
    kind = nested.get("rope_type") or nested.get("type") or "default"
    if kind == "mrope" or (kind == "default" and nested.get("mrope_section")):
        kind = "default"  # for text, all three sections have the same positions
    if nested.real("partial_rotary_factor", fields.real("partial_rotary_factor", 1.0)) != 1.0:
        raise Unsupported(f"{fields.name}: partial_rotary_factor: only drafts with 1.0 are supported.")
    if kind == "default":
        return theta, None
    if kind not in SCALED:
        raise Unsupported(f"{fields.name}: rope_scaling: {str(kind)[:40]!r} is not supported; {', '.join(SCALED)} are.")
    return theta, _scaling(kind, nested, fields)


def _scaling(kind: str, nested: Fields, fields: Fields) -> dict[str, Any]:
    required, optional = ROPE_NUMBERS[kind]
    scaling: dict[str, Any] = {"rope_type": kind}
    for key in (*required, *optional):
        default = fields.get("max_position_embeddings") if key == "original_max_position_embeddings" else None
        if key in required or nested.get(key) is not None:
            nested.real(key, default)
            scaling[key] = nested.get(key, default)
    return scaling


def _check_supported(fields: Fields) -> None:
    """Raise Unsupported for options that the workbench's layers would not apply."""
    if (act := fields.text("hidden_act")) not in ("", "silu", "swish"):
        raise Unsupported(f"{fields.name}: hidden_act {act!r} is not supported; silu is.")
    if fields.get("quantization_config"):
        raise Unsupported(f"{fields.name}: quantization_config: the draft is quantised; import the unquantised draft.")
    if (scale := fields.get("logit_scale", 1.0)) != 1.0:
        raise Unsupported(f"{fields.name}: logit_scale {scale!r}: only drafts with 1.0 are supported.")


def sliding_window_notice(fields: Fields) -> str:
    """A notice if the layer was trained with a sliding window; the workbench's drafts attend to all positions."""
    kinds = fields.get("layer_types")
    kinds = kinds if isinstance(kinds, list) else ()
    if "sliding_attention" not in kinds and not fields.get("use_sliding_window"):
        return ""
    return (
        f"sliding_window: the draft was trained with a window of {fields.get('sliding_window')} tokens; the workbench "
        "attends to all tokens, so in longer texts fewer draft tokens may be accepted."
    )
