"""EAGLE drafts of the EAGLE repository, SpecForge, SGLang, vLLM, ModelOpt and speculators.

EAGLE-1 (and EAGLE-2, HASS): `fc` over embedding and feature, then Llama layers; the base model's lm_head. Sources:
SafeAILab/EAGLE (`cnets1.py`), vLLM (`llama_eagle.py`), SGLang (`LlamaForCausalLMEagle`). They differ in `fc.bias`, so
the tensors decide; a bias of zeros, which SGLang needs, is dropped.

EAGLE-3: the tensors are the same, except for the prefix `midlayer.` or `layers.0.`. The meaning of
`eagle_aux_hidden_state_layer_ids` differs: SGLang, SpecForge and ModelOpt count outputs of layers (0-based), vLLM and
speculators count inputs, which is one more for the same tensor. If the ids are one of the two defaults, the default
decides, because converted files keep the ids of their original project.

Defaults of the layers are those of the EAGLE repository's config class (rms_norm_eps 1e-6, rope_theta 10000), not the
base model's."""

import re
from typing import Any

import torch
from torch import Tensor

from formats.imports.names import Fields, plain_name
from formats.imports.source import (
    EMBEDDINGS,
    DraftSource,
    ImportedDraft,
    check_size,
    check_vocabulary,
    fill,
    own_embeddings,
    same_values,
)
from models.base import aux_layers
from models.draft_layers import SCALED
from speculoos.errors import BadInput, Unsupported

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
MODELOPT_TWICE = "modelopt-eagle3-twice"
"""As modelopt-eagle3, but drafts like ModelOpt's own module since 0.41: see `norm_features_twice`."""
INPUT_IDS = ("vllm-eagle3", "speculators", "peagle")
"""Layouts whose layer ids count inputs of layers."""
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


def read_eagle(source: DraftSource) -> ImportedDraft:
    """The draft as EAGLE-1's network. Raises BadInput or Unsupported with the key at fault."""
    source.rename(plain_name)
    hidden = source.fields.number("hidden_size", source.shape("fc.weight")[0])
    check_size(source, "hidden_size", hidden, source.base.hidden_size)
    check_vocabulary(source)
    config = layer_config(source, hidden)
    tensors = own_embeddings(source, hidden)
    if (bias := _fc_bias(source)) is not None:
        tensors["fc.bias"] = bias
    _drop_base_head(source)
    config |= {
        "vocab_size": source.base.vocab_size,
        "eagle_num_layers": layer_count(source),
        "use_input_layernorm_in_first_layer": source.has("layers.0.input_layernorm.weight"),
        "use_last_layernorm": source.has("norm.weight"),
        "fc_bias": bias is not None,
        "own_embeddings": EMBEDDINGS in tensors,
    }
    return fill("eagle", config, source, tensors)


def _fc_bias(source: DraftSource) -> Tensor | None:
    stated = source.fields.get("bias")
    if not source.has("fc.bias"):
        if stated is True:
            raise BadInput(f"{source.name}: the tensor fc.bias is missing, and config.json says bias true.")
        return None
    bias = source.take("fc.bias", (source.shape("fc.weight")[0],))
    if not torch.any(bias):
        source.notices.append("fc.bias: all values are zero; it was dropped.")
        return None
    if stated is False:
        raise BadInput(f"{source.name}: fc.bias exists and is not zero, but config.json says bias false; remove one.")
    return bias


def _drop_base_head(source: DraftSource) -> None:
    """Drop an lm_head in the file, which must be the base model's. Raises Unsupported if it is not."""
    if not source.has("lm_head.weight"):
        return
    head = source.take("lm_head.weight")
    if source.base.head is None or not same_values(head, source.base.head):
        raise Unsupported(
            f"{source.name}: lm_head.weight is not the lm_head of {source.base.name}, which EAGLE-1 uses; "
            "choose the base model the draft was trained for."
        )


def read_eagle3(source: DraftSource) -> ImportedDraft:
    """The draft as EAGLE-3's network. Raises BadInput or Unsupported with the key at fault."""
    return fill("eagle3", *eagle3_parts(source))


def eagle3_parts(source: DraftSource) -> tuple[dict[str, Any], DraftSource, dict[str, Tensor]]:
    """The config of an EAGLE-3 network, the source, and the tensors that are not in it as they are: arguments of
    `fill`."""
    source.rename(plain_name)
    _check_supported(source)
    check_vocabulary(source)
    hidden = source.fields.number("hidden_size", source.shape("norm.weight")[0])
    target = source.fields.number("target_hidden_size", 0)
    check_size(source, "target_hidden_size" if target else "hidden_size", target or hidden, source.base.hidden_size)
    config = {"aux_layers": _aux_layers(source, hidden), **layer_config(source, hidden), **_options(source)}
    tensors = own_embeddings(source, hidden)
    tensors |= _head(source, hidden, tensors.get(EMBEDDINGS))
    config |= {
        "vocab_size": source.base.vocab_size,
        "draft_vocab_size": len(tensors["d2t"]),
        "target_hidden_size": 0 if hidden == source.base.hidden_size else source.base.hidden_size,
        "own_embeddings": EMBEDDINGS in tensors,
        "norm_features_twice": source.layout == MODELOPT_TWICE,
    }
    return config, source, tensors


def _check_supported(source: DraftSource) -> None:
    """Raise Unsupported for variants with another network and the same tensor names."""
    fields = source.fields
    if fields.get("use_aux_hidden_state") is False:
        raise Unsupported(
            f"{source.config_name}: use_aux_hidden_state is false; only drafts that fuse layers are supported."
        )
    if (step := fields.get("parallel_draft_step") or 1) != 1:
        raise Unsupported(f"{source.config_name}: parallel_draft_step {step}: parallel drafting is not supported.")
    if not source.has("layers.0.hidden_norm.weight"):
        raise BadInput(f"{source.name}: the tensor layers.0.hidden_norm.weight is missing; download the draft again.")


def _options(source: DraftSource) -> dict[str, Any]:
    """Options of the network, from the tensors where the option has tensors, else from the config."""
    fields = source.fields
    each, joined = source.has("fc_norm.0.weight"), source.has("input_norm.weight")
    for key, present in (("fc_norm", each), ("norm_before_fc", joined)):
        if fields.flag(key) != present and fields.get(key) is not None:
            fault = "is false and its tensors are present" if present else "is true and its tensors are missing"
            raise BadInput(f"{source.config_name}: {key} {fault}; restore the draft's original config.json.")
    if each and joined:
        raise Unsupported(
            f"{source.name}: the tensors input_norm and fc_norm are both present; drafts with one of the two norms are "
            "supported."
        )
    return {
        "norm_before_residual": fields.flag("norm_before_residual"),
        "norm_output": fields.flag("norm_output") or fields.flag("return_hidden_post_norm"),
        "fc_norm": each,
        "norm_before_fc": joined,
        "fc_bias": source.has("fc.bias"),
        "eagle_num_layers": layer_count(source),
    }


def _aux_layers(source: DraftSource, hidden: int) -> tuple[int, ...]:
    """Layers of the base model whose outputs are fused (0-based). Raises BadInput for invalid ids."""
    base, layers = source.base, source.base.base.num_layers
    shape, defaults = source.shape("fc.weight"), aux_layers(layers)
    fused = shape[-1] // base.hidden_size
    if shape != (hidden, fused * base.hidden_size):
        source.take("fc.weight", (hidden, 3 * base.hidden_size))  # raises
    layer_ids = source.fields.get(LAYER_IDS) or source.fields.get("aux_hidden_state_layer_ids")
    ids = layer_ids or defaults
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        raise BadInput(f"{source.config_name}: {LAYER_IDS}: expected a list of whole numbers, got {str(ids)[:60]!r}.")
    ids, inputs = tuple(ids), tuple(i + 1 for i in defaults)
    format_shift = shift = 1 if source.layout in INPUT_IDS else 0
    if ids in (defaults, inputs) and not (source.layout_chosen and layer_ids):
        shift = int(ids == inputs)  # if the user chose no layout, a default is read as such
    if len(ids) != fused:
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS} has {len(ids)} layers, and {source.name_in_file('fc.weight')} "
            f"takes {fused}."
        )
    if len(set(ids)) < len(ids) and ids not in (defaults, inputs):  # those of a base model with few layers repeat
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS} has a layer more than once, which no server supports; restore the "
            "draft's original config.json."
        )
    if wrong := [i for i in ids if not shift <= i < layers + shift]:
        last = layers - 1 + shift
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS}: expected layers {shift} to {last} of the base model {base.name}, "
            f"got {wrong[0]}."
        )
    if layer_ids and shift != format_shift:
        kind = ("outputs", "inputs")[shift]
        source.notices.append(
            f"{LAYER_IDS}: {list(ids)} were read as {kind} of layers, because they are the default for {kind}; "
            "choose another meaning with --format."
        )
    return tuple(i - shift for i in ids)


def _head(source: DraftSource, hidden: int, own: Tensor | None) -> dict[str, Tensor]:
    """lm_head.weight, d2t and t2d. If lm_head.weight is missing, it is the embeddings (if tied) or the
    base model's. `own` are the draft's own embeddings, if any."""
    base, stated = source.base, source.fields.number("draft_vocab_size", 0)
    tied = source.fields.flag("tie_word_embeddings")
    embeddings = base.embeddings if own is None else own
    if source.has("lm_head.weight"):
        head = source.take("lm_head.weight", (stated or source.shape("lm_head.weight")[0], hidden))
        if tied and not (embeddings is not None and same_values(head, embeddings)):
            source.notices.append(
                "tie_word_embeddings: config.json says true, but lm_head.weight differs from the embeddings; "
                "the draft uses lm_head.weight."
            )
    else:
        if stated not in (0, base.vocab_size):
            raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and draft_vocab_size is {stated}.")
        head = embeddings if tied else base.head if own is None else None
        if head is None:
            raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and there is no substitute for it.")
        head = torch.clone(head)
        origin = (
            "the embeddings are used (tie_word_embeddings is true)" if tied else f"the lm_head of {base.name} is used"
        )
        source.notices.append(f"lm_head.weight: not in the file; {origin}.")
    d2t, t2d = vocabulary(source, len(head))
    return {"lm_head.weight": head, "d2t": d2t, "t2d": t2d}


def vocabulary(source: DraftSource, size: int) -> tuple[Tensor, Tensor]:
    """d2t int64 [size] and t2d bool [V] of a head with `size` rows. `d2t` is optional for a head with all tokens, `t2d`
    always. Raises BadInput if `d2t` is missing, or they contradict each other."""
    base = source.base
    if not source.has("d2t") and size != base.vocab_size:
        raise BadInput(
            f"{source.name}: the tensor d2t is missing: draft_vocab_size is {size} and the base model {base.name} has "
            f"{base.vocab_size} tokens, so the draft's tokens are unknown."
        )
    d2t = source.take("d2t", (size,)).long() if source.has("d2t") else torch.zeros(size, dtype=torch.int64)
    if size == base.vocab_size and torch.any(d2t):
        raise BadInput(f"{source.name}: d2t is not zero although the draft has all {size} tokens of the base model.")
    ids = torch.arange(size) + d2t
    if int(ids.min()) < 0 or int(ids.max()) >= base.vocab_size or len(ids.unique()) != size:
        raise BadInput(
            f"{source.name}: d2t must map to {size} different tokens of the base model's {base.vocab_size} "
            "(draft id i is token i + d2t[i]); download the draft again."
        )
    mask = torch.zeros(base.vocab_size, dtype=torch.bool)
    mask[ids] = True
    if source.has("t2d"):
        stored = source.take("t2d", tuple(mask.shape)).bool()
        unused = mask.all() or stored.all()  # a whole vocabulary, or the initial value of a trainer
        if not unused and not torch.equal(stored, mask):
            raise BadInput(f"{source.name}: t2d contains other tokens than d2t; download the draft again.")
    return d2t, mask


def layer_config(source: DraftSource, hidden: int) -> dict[str, Any]:
    """Fields of `models.draft_layers.LayerConfig`. Raises BadInput if config and tensors contradict each other,
    Unsupported for an unsupported kind of layer."""
    fields = source.fields
    _check_layer(fields)
    _note_sliding_window(source)
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
    Raises Unsupported for a kind of scaling that depends on the sequence length."""
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


def _check_layer(fields: Fields) -> None:
    """Raise Unsupported for options that the workbench's layers would not apply."""
    if (act := fields.text("hidden_act")) not in ("", "silu", "swish"):
        raise Unsupported(f"{fields.name}: hidden_act {act!r} is not supported; silu is.")
    if fields.get("quantization_config"):
        raise Unsupported(f"{fields.name}: quantization_config: the draft is quantized; import the unquantized draft.")
    if (scale := fields.get("logit_scale", 1.0)) != 1.0:
        raise Unsupported(f"{fields.name}: logit_scale {scale!r}: only drafts with 1.0 are supported.")


def _note_sliding_window(source: DraftSource) -> None:
    kinds = source.fields.get("layer_types")
    if "sliding_attention" in (kinds if isinstance(kinds, list) else ()) or source.fields.get("use_sliding_window"):
        source.notices.append(
            f"sliding_window: the draft was trained with a window of {source.fields.get('sliding_window')} tokens; the "
            "workbench attends to all tokens, so in longer texts fewer draft tokens may be accepted."
        )
