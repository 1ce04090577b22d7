"""P-EAGLE drafts of speculators, and of vLLM's parallel drafting.

The tensors are EAGLE-3's and `mask_hidden`, the hidden states of masked positions. Layer ids count inputs. speculators
calls the mask token `mask_token_id`; vLLM also reads `pard_token` and `ptd_token_id`. Sources:
speculators/models/peagle/{config,core}.py; vllm/v1/spec_decode/llm_base_proposer.py (`_init_parallel_drafting_params`).
"""

from typing import Any

from formats.imports.eagle import eagle3_parts
from formats.imports.source import DraftSource, ImportedDraft, fill
from models.peagle import MAX_DEPTHS
from speculoos.errors import BadInput

MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")
DEPTHS = 8
"""speculators' default of `num_depths`, which vLLM's configs do not have."""


def read_peagle(source: DraftSource) -> ImportedDraft:
    """The draft as P-EAGLE's network. Raises BadInput or Unsupported with the key at fault."""
    config, _, tensors = eagle3_parts(source)
    fused = len(config["aux_layers"]) * source.base.hidden_size
    mask = source.take("mask_hidden")
    if mask.numel() != fused:
        raise BadInput(f"{source.name}: mask_hidden: expected {fused} numbers, found {mask.numel()}.")
    tensors["mask_hidden"] = mask.view(1, 1, fused)
    config |= {"mask_token_id": mask_token(source, *MASK_TOKENS), "num_depths": _depths(source)}
    return fill("peagle", config, source, tensors)


def mask_token(source: DraftSource, *keys: str) -> int:
    """The mask token, under the first of `keys` that the config has. Raises BadInput."""
    key = next((key for key in keys if source.fields.get(key) is not None), keys[0])
    token = source.fields.get(key)
    if type(token) is not int or not 0 <= token < source.base.vocab_size:
        raise BadInput(
            f"{source.config_name}: {key}: expected a token of the base model {source.base.name}, 0 to "
            f"{source.base.vocab_size - 1}, got {str(token)[:40]}; restore the draft's original config.json."
        )
    return token


def _depths(source: DraftSource) -> int:
    """Depths that the draft was trained for: our exports for vLLM have the key, speculators the tokens of a proposal
    method."""
    section: Any = source.config.get("speculators_config")
    methods = section.get("proposal_methods") if isinstance(section, dict) else None
    method = methods[0] if isinstance(methods, list) and methods else None
    tokens = method.get("speculative_tokens") if isinstance(method, dict) else None
    depths = source.fields.get("num_depths", tokens)
    if type(depths) is int and 1 <= depths <= MAX_DEPTHS:
        return depths
    source.notices.append(f"speculative_tokens: not in the config; the draft is used for up to {DEPTHS} tokens.")
    return DEPTHS
