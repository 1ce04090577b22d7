"""The decoder layer of an EAGLE draft, out of a Llama-like config and the tensors that are there.

Defaults are those of the EAGLE repository's config class (rms_norm_eps 1e-6, rope_theta 10000), not the base's.
"""

import re
from math import isfinite
from typing import Any

from formats.imports.fields import Fields
from formats.imports.source import DraftSource
from models.rope import SCALED
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
"""What each kind of rope scaling must and may say."""


def layer_config(source: DraftSource, hidden: int) -> dict[str, Any]:
    """Fields of `models.draft_layers.LayerShape`. Raises BadInput where config and tensors contradict each other,
    Unsupported where the layer computes in a way unknown here."""
    fields = source.fields
    _check_plain(fields)
    heads = fields.number("num_attention_heads")
    keys = fields.number("num_key_value_heads", heads)
    head_dim = fields.number("head_dim", 0) or hidden // heads
    if heads % max(keys, 1) or head_dim % 2:
        raise BadInput(
            f"{source.where}: num_attention_heads {heads}, num_key_value_heads {keys}, head_dim {head_dim}: the first "
            "must be a multiple of the second, and the last even."
        )
    _check_rows(source, "q_proj", "num_attention_heads", heads, head_dim)
    _check_rows(source, "k_proj", "num_key_value_heads", keys, head_dim)
    theta, scaling = rope(fields)
    return {
        "hidden_size": hidden,
        "intermediate_size": _intermediate(source, fields),
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
    """Layers the tensors are of. Raises BadInput where num_hidden_layers says another number."""
    numbers = {int(match[1]) for name in source.entries if (match := LAYER.match(name))}
    stated = source.fields.number("num_hidden_layers", len(numbers))
    if stated != len(numbers):
        raise BadInput(
            f"{source.where}: num_hidden_layers is {stated} and the tensors are of {len(numbers)} layers; "
            "restore the config.json that came with them."
        )
    return len(numbers)


def rope(fields: Fields) -> tuple[float, dict[str, Any] | None]:
    """rope_theta, and the scaling as `models.rope.frequencies` takes it, from either generation of configs.

    Raises Unsupported for a kind of scaling that changes with the length of the text.
    """
    parameters, scaling = fields.get("rope_parameters", {}), fields.get("rope_scaling", {})
    if not isinstance(parameters, dict) or not isinstance(scaling, dict):
        raise BadInput(f"{fields.where}: rope_scaling: expected an object; restore the file.")
    nested = Fields(f"{fields.where}: rope_scaling", scaling, parameters)
    theta = fields.real("rope_theta", nested.real("rope_theta", 10000.0))
    kind = nested.get("rope_type") or nested.get("type") or "default"
    if kind == "mrope" or (kind == "default" and nested.get("mrope_section")):
        kind = "default"  # of text alone the three parts turn alike
    if nested.real("partial_rotary_factor", fields.real("partial_rotary_factor", 1.0)) != 1.0:
        raise Unsupported(f"{fields.where}: partial_rotary_factor: drafts here turn all channels of a head.")
    if kind == "default":
        return theta, None
    if kind not in SCALED:
        raise Unsupported(
            f"{fields.where}: rope_scaling: {str(kind)[:40]!r} is not known here; {', '.join(SCALED)} are."
        )
    return theta, _scaling(kind, nested, fields)


def _scaling(kind: str, nested: Fields, fields: Fields) -> dict[str, Any]:
    must, may = ROPE_NUMBERS[kind]
    scaling: dict[str, Any] = {"rope_type": kind}
    for key in (*must, *may):
        value = nested.get(key)
        if value is None and key == "original_max_position_embeddings":
            value = fields.get("max_position_embeddings")
        if value is None and key in may:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value <= 0:
            raise BadInput(f"{nested.where}: {key}: expected a number above 0, got {str(value)[:40]!r}.")
        scaling[key] = value
    return scaling


def _check_plain(fields: Fields) -> None:
    """Refuse what would be computed otherwise than the draft was trained."""
    if (act := fields.text("hidden_act")) not in ("", "silu", "swish"):
        raise Unsupported(f"{fields.where}: hidden_act {act!r} is not known here; silu is.")
    if fields.get("quantization_config"):
        raise Unsupported(f"{fields.where}: quantization_config: the draft is quantised; take the one that is not.")
    if (scale := fields.get("logit_scale", 1.0)) != 1.0:
        raise Unsupported(f"{fields.where}: logit_scale {scale!r}: drafts here do not scale their logits.")


def _check_rows(source: DraftSource, part: str, key: str, heads: int, head_dim: int) -> None:
    rows = source.shape(f"{FIRST}.{part}.weight")[0]
    if rows != heads * head_dim:
        raise BadInput(
            f"{source.where}: {key} is {heads}, which with head_dim {head_dim} makes {heads * head_dim} rows; "
            f"{source.their(f'{FIRST}.{part}.weight')} has {rows}."
        )


def _intermediate(source: DraftSource, fields: Fields) -> int:
    rows = source.shape("layers.0.mlp.gate_proj.weight")[0]
    if (stated := fields.number("intermediate_size", rows)) != rows:
        raise BadInput(
            f"{source.where}: intermediate_size is {stated}, and {source.their('layers.0.mlp.gate_proj.weight')} "
            f"has {rows} rows."
        )
    return rows


def looks_back_less(fields: Fields) -> str:
    """A notice where the layer was trained with a sliding window; drafts here look at the whole text."""
    kinds = fields.get("layer_types")
    kinds = kinds if isinstance(kinds, list) else ()
    if "sliding_attention" not in kinds and not fields.get("use_sliding_window"):
        return ""
    return (
        f"sliding_window: the draft was made to look back {fields.get('sliding_window')} tokens; here it looks at all, "
        "so in longer texts fewer of its tokens may be accepted."
    )
