"""EAGLE-3 for five servers. Tensor names are the same; the config, the presence of d2t and t2d, and the counting of
fused layers differ. Embeddings are the target's; only an imported draft's own embeddings are written. No torch.
"""

from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.plan import ExportPlan, from_entry
from formats.serve import drafted_tokens
from formats.writers import llama

MAPS = ("d2t", "t2d")
IDS = "eagle_aux_hidden_state_layer_ids"


def vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Layer ids count inputs (output + 1); all versions read them at the top level, newer ones also in eagle_config.
    Only vLLM knows this class name: SGLang, which counts outputs, refuses it instead of fusing other layers."""
    ids = _ids(checkpoint, 1)
    config = _config(checkpoint, "Eagle3LlamaForCausalLM", ids)
    return ExportPlan(_tensors(checkpoint, *MAPS), {**config, **_norms(checkpoint), **ids})


def speculators(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The layer has a nested transformers config. Layer ids count inputs (output + 1) and are always written: without
    them `from_pretrained` would open the base model's config."""
    layer = llama.config(checkpoint, "LlamaForCausalLM", checkpoint.config.get("eagle_num_layers", 1))
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": drafted_tokens(checkpoint),
        "accept_tolerance": 0.0,
        "verifier_accept_k": 1,
    }
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": facts.location, "architectures": checkpoint.base.get("architectures") or []},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "target_hidden_size": None,
        **_norms(checkpoint),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
        IDS: [layer + 1 for layer in checkpoint.aux_layers],
    }
    return ExportPlan(_tensors(checkpoint, *MAPS), config)


def sglang(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Layer ids count outputs; SGLang adds one itself."""
    config = _config(checkpoint, "LlamaForCausalLMEagle3", _ids(checkpoint, 0))
    norms = {name: value for name, value in _norms(checkpoint).items() if name != "norm_before_residual"}
    return ExportPlan(_tensors(checkpoint, *MAPS), {**config, **norms})


def trtllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The server reads layers from its YAML; the config has the same ids of outputs for other programs. t2d is not a
    parameter of the server's class."""
    return ExportPlan(_tensors(checkpoint, "d2t"), _config(checkpoint, "EAGLE3LlamaForCausalLM", _ids(checkpoint, 0)))


def modelopt(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """ModelOpt's template: layer ids count outputs, no t2d, and the options of its module."""
    config = _config(checkpoint, "LlamaForCausalLMEagle3", _ids(checkpoint, 0))
    options = {
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    extra = {"initializer_range": 0.02, "attention_dropout": 0.0, "pretraining_tp": 1}
    return ExportPlan(
        _tensors(checkpoint, "d2t"), {**config, **extra, "eagle_config": {**config["eagle_config"], **options}}
    )


def _tensors(checkpoint: CheckpointFiles, *maps: str) -> list:
    """All tensors except vocabulary maps that are not in `maps`; no map for a whole vocabulary."""
    left_out = {name for name in MAPS if name not in maps or not checkpoint.small_vocabulary}
    return [from_entry(entry) for name, entry in checkpoint.tensors.items() if name not in left_out]


def _config(checkpoint: CheckpointFiles, architecture: str, ids: dict[str, Any]) -> dict[str, Any]:
    return {
        **llama.config(checkpoint, architecture, checkpoint.config.get("eagle_num_layers", 1)),
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "target_hidden_size": checkpoint.config.get("target_hidden_size") or checkpoint.hidden_size,
        "eagle_config": {"use_aux_hidden_state": True, **ids},
    }


def _norms(checkpoint: CheckpointFiles) -> dict[str, bool]:
    """Options of EAGLE-3.1. vLLM and speculators read all of them, SGLang all but the first."""
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: bool(checkpoint.config.get(name)) for name in names}


def _ids(checkpoint: CheckpointFiles, added: int) -> dict[str, list[int]]:
    """Ids of layer outputs plus `added`. No key for the default of all servers, so that no server can misread them."""
    if checkpoint.aux_layers == checkpoint.default_aux_layers:
        return {}
    return {IDS: [layer + added for layer in checkpoint.aux_layers]}
