"""Properties of model families: which do not support drafts, and how logits are computed from the LM head's output.
Read from configs and the source of transformers, without importing it or torch."""

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RECURRENT_SOURCE = re.compile(
    r"_is_stateful = True|update_(conv|recurrent|ssm)_state|LinearAttention\w*Layer|MiniMaxCache"
)
"""Matches the transformers source of families with a recurrent state: linear attention, state spaces, convolutions."""
RECURRENT_LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "hybrid", "hybrid_sliding"})
"""Recurrent layers in `layer_types` or `layers_block_type`, for families that transformers lacks."""
BIDIRECTIONAL_FAMILIES = frozenset(
    {
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
        *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl"),
        *("xmod", "xlm", "xlnet", "reformer"),
    }
)
"""Encoders that transformers also lists as causal LMs. They are causal only with `is_decoder`."""

LOGIT_DIVISORS = dict.fromkeys(
    ("granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared"), "logits_scaling"
)
LOGIT_MULTIPLIERS = {
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), "logit_scale"),
    "hyperclovax": "logits_scaling",
}
LOGIT_CAPS = dict.fromkeys(
    ("gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "vaultgemma", "nanochat"), "final_logit_softcapping"
)
"""{family: config key} of the families that cap logits; the others divide or multiply them. A key
can mean both: `logits_scaling` divides in Granite and multiplies in HyperCLOVA X."""
HIDDEN_DIVISORS = {"minicpm3": "dim_model_base"}
"""Families that divide hidden states by hidden size / this value, which scales logits of a head without a bias."""
LOGIT_KEYS = (
    *("logits_scaling", "logit_scale", "final_logit_softcapping", "lm_head_multiplier", "output_multiplier"),
    *("logits_mup_width_multiplier", "logits_soft_cap", "output_logits_soft_cap", "dim_model_base"),
)


@dataclass(frozen=True)
class LogitRule:
    """logits = cap · tanh(scale · z / cap), where z is the output of the LM head with its bias; cap 0: scale · z."""

    scale: float = 1.0
    cap: float = 0.0


IDENTITY_RULE = LogitRule()
"""The rule of most families: logits = z."""


def logit_rule(config: dict[str, Any]) -> LogitRule:
    """The logit rule of a config.json, as in the family's forward in transformers."""
    text = config.get("text_config") or config
    kind = text.get("model_type") or config.get("model_type", "")
    if value := text.get(LOGIT_DIVISORS.get(kind)):
        return LogitRule(1 / value)
    if value := text.get(LOGIT_MULTIPLIERS.get(kind)):
        return LogitRule(value)
    if value := text.get(HIDDEN_DIVISORS.get(kind)):
        return LogitRule(value / text["hidden_size"])
    return LogitRule(cap=text.get(LOGIT_CAPS.get(kind)) or 0.0)


def unsupported_reason(config: dict[str, Any]) -> str:
    """Why drafts cannot be made for a base with this config.json, in one sentence; "" if they can."""
    kind, architecture = config.get("model_type", ""), (config.get("architectures") or [""])[0]
    text = config.get("text_config") or config
    kinds = {kind, str(text.get("model_type", kind))}
    lists = (text.get(name) for name in ("layer_types", "layers_block_type"))
    layers = {str(layer) for names in lists if isinstance(names, list) for layer in names}
    if config.get("is_encoder_decoder"):
        return f"{kind} is an encoder-decoder model; only decoder-only models are supported."
    if any(map(has_recurrent_state, kinds)) or "ssm_cfg" in config or RECURRENT_LAYERS & layers:
        return f"{kind} keeps a recurrent state, which cannot be rolled back after a rejected draft token."
    if architecture.endswith("ForConditionalGeneration"):
        return f"{architecture} is not a text-only causal model; only those are supported."
    if architecture and not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return f"{architecture} has no language-model head."
    if kinds & BIDIRECTIONAL_FAMILIES and not config.get("is_decoder"):
        return f"{kind} attends to later tokens too, so it is not a causal model."
    if name := _unknown_logit_key(text, kinds):
        return f"How {kind} applies {name} to its logits is unknown, so a draft would learn wrong logits."
    return ""


@cache
def has_recurrent_state(kind: str) -> bool:
    """Whether the family `kind` (a `model_type`) has a recurrent state, which cannot be rolled back. Read from the
    source of the installed transformers, so that no list needs updating."""
    name = kind.removesuffix("_text").replace("-", "_")
    spec = find_spec("transformers")
    if spec is None or not spec.origin or not name.isidentifier():
        return False
    source = Path(spec.origin).parent / "models" / name / f"modeling_{name}.py"
    return source.is_file() and RECURRENT_SOURCE.search(source.read_text(encoding="utf-8")) is not None


def _unknown_logit_key(config: dict[str, Any], kinds: set[str]) -> str:
    """The first config key that scales or caps logits in a family where its meaning is unknown; "" if none."""
    known = {
        table[kind]
        for table in (LOGIT_DIVISORS, LOGIT_MULTIPLIERS, LOGIT_CAPS, HIDDEN_DIVISORS)
        for kind in kinds
        if kind in table
    }
    return next((name for name in LOGIT_KEYS if name not in known and config.get(name) not in (None, 0, 1, False)), "")
