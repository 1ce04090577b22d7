"""What is known of model families by name: which of them drafts cannot be made for, and what becomes of the product
with the head before it is a logit. Read from configs and from the source of transformers; neither it nor torch is
imported.
"""

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

STATEFUL = re.compile(r"_is_stateful = True|update_(conv|recurrent|ssm)_state|LinearAttention\w*Layer|MiniMaxCache")
"""How the source of a family in transformers shows a state that sums up the text so far: linear attention, state
spaces, convolutions."""
RECURRENT_LAYERS = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent", "hybrid", "hybrid_sliding"})
"""Such layers under `layer_types` or `layers_block_type` of a family that transformers does not have."""
BOTH_WAYS = frozenset(
    {
        *("bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert"),
        *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xlm-roberta-xl"),
        *("xmod", "xlm", "xlnet", "reformer"),
    }
)
"""Encoders that transformers also lists as causal models. They are causal where `is_decoder` says so."""

DIVIDED = dict.fromkeys(
    ("granite", "granite_swa", "granitemoe", "granitemoe_swa", "granitemoeshared"), "logits_scaling"
)
MULTIPLIED = {**dict.fromkeys(("cohere", "cohere2", "cohere2_moe"), "logit_scale"), "hyperclovax": "logits_scaling"}
CAPPED = dict.fromkeys(
    ("gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "vaultgemma", "nanochat"), "final_logit_softcapping"
)
"""Families of transformers and the setting by which they divide, multiply or cap the product: one name may mean
different things (`logits_scaling` divides in Granite and multiplies in HyperCLOVA X)."""
NARROWED = {"minicpm3": "dim_model_base"}
"""Families that divide their hidden states by hidden size / this setting, which is the same for a head without a
bias."""
BENDING = (
    *("logits_scaling", "logit_scale", "final_logit_softcapping", "lm_head_multiplier", "output_multiplier"),
    *("logits_mup_width_multiplier", "logits_soft_cap", "output_logits_soft_cap", "dim_model_base"),
)
"""Settings of that kind, under whatever name."""


@dataclass(frozen=True)
class LogitRule:
    """logits = cap · tanh(scale · z / cap) of z, the product with the head, its bias included; cap 0: scale · z."""

    scale: float = 1.0
    cap: float = 0.0


PLAIN = LogitRule()
"""What most families do: the product is the logit."""


def logit_rule(config: dict[str, Any]) -> LogitRule:
    """What the family of a config.json does to the product with its head, as its forward in transformers does."""
    text = config.get("text_config") or config
    kind = text.get("model_type") or config.get("model_type", "")
    if value := text.get(DIVIDED.get(kind)):
        return LogitRule(1 / value)
    if value := text.get(MULTIPLIED.get(kind)):
        return LogitRule(value)
    if value := text.get(NARROWED.get(kind)):
        return LogitRule(value / text["hidden_size"])
    return LogitRule(cap=text.get(CAPPED.get(kind)) or 0.0)


def why_not(config: dict[str, Any]) -> str:
    """Empty where drafts can be made for a base with this config.json, else why not, in one sentence."""
    kind, architecture = config.get("model_type", ""), (config.get("architectures") or [""])[0]
    text = config.get("text_config") or config
    kinds = {kind, str(text.get("model_type", kind))}
    if config.get("is_encoder_decoder"):
        return f"{kind} is an encoder-decoder model; drafts here belong to decoder-only ones."
    if any(map(keeps_state, kinds)) or "ssm_cfg" in config or RECURRENT_LAYERS & _layer_types(text):
        return f"{kind} keeps a recurrent state, which cannot be rolled back after a rejected draft token."
    if config.get("quantization_config"):
        return "Its weights are quantised; fetch the unquantised model or a GGUF file of it."
    if architecture.endswith("ForConditionalGeneration"):
        return f"{architecture} is no causal model of text alone, which is what drafts here are made for."
    if architecture and not architecture.endswith(("ForCausalLM", "LMHeadModel")):
        return f"{architecture} has no language-model head."
    if kinds & BOTH_WAYS and not config.get("is_decoder"):
        return f"{kind} looks at later tokens too, so it is no causal model."
    if name := _unknown_bend(text, kinds):
        return f"What {kind} makes of its logits by {name} is not known here, so a draft would learn other ones."
    return ""


@cache
def keeps_state(kind: str) -> bool:
    """True if the family with this `model_type` keeps a recurrent state, which cannot be rolled back.

    Read from the installed transformers, whose releases add such families faster than a list here could follow.
    """
    name = kind.removesuffix("_text").replace("-", "_")
    found = find_spec("transformers")
    if found is None or not found.origin or not name.isidentifier():
        return False
    source = Path(found.origin).parent / "models" / name / f"modeling_{name}.py"
    return source.is_file() and STATEFUL.search(source.read_text(encoding="utf-8")) is not None


def _layer_types(config: dict[str, Any]) -> set[str]:
    lists = (config.get(name) for name in ("layer_types", "layers_block_type"))
    return {str(kind) for kinds in lists if isinstance(kinds, list) for kind in kinds}


def _unknown_bend(config: dict[str, Any], kinds: set[str]) -> str:
    """A setting that bends logits in a family of which it is not known how."""
    known = {table[kind] for table in (DIVIDED, MULTIPLIED, CAPPED, NARROWED) for kind in kinds if kind in table}
    return next((name for name in BENDING if name not in known and config.get(name) not in (None, 0, 1, False)), "")
