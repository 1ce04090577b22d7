"""EAGLE-3 as five readers load it. Tensor names are the same everywhere; what differs is the config, which of d2t and
t2d are there, and how fused layers are counted. Embeddings are the target's; only an imported draft's own are written.
No torch.
"""

from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import Facts
from formats.plan import ExportPlan, from_entry
from formats.serve import drafted_tokens
from formats.writers import llama

MAPS = ("d2t", "t2d")
IDS = "eagle_aux_hidden_state_layer_ids"


def vllm(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """Layers are counted by their inputs (n + 1), at the top level in all versions, in eagle_config in newer ones. The
    class has the name that only vLLM knows: SGLang, which counts otherwise, refuses it instead of fusing other layers.
    """
    ids = _ids(checkpoint, 1)
    config = _config(checkpoint, "Eagle3LlamaForCausalLM", ids)
    return ExportPlan(_tensors(checkpoint, *MAPS), {**config, **_norms(checkpoint), **ids})


def speculators(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """The layer is a transformers config of its own; layers are counted by their inputs (n + 1), and always named:
    without them `from_pretrained` opens the base's config, wherever that is."""
    layer = llama.config(checkpoint, "LlamaForCausalLM", checkpoint.config.get("eagle_num_layers", 1))
    proposal = {
        **{"proposal_type": "greedy", "speculative_tokens": drafted_tokens(checkpoint)},
        **{"accept_tolerance": 0.0, "verifier_accept_k": 1},
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


def sglang(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """Layers are counted by their outputs; SGLang adds the one itself."""
    config = _config(checkpoint, "LlamaForCausalLMEagle3", _ids(checkpoint, 0))
    norms = {name: value for name, value in _norms(checkpoint).items() if name != "norm_before_residual"}
    return ExportPlan(_tensors(checkpoint, *MAPS), {**config, **norms})


def trtllm(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """Layers are read from the server's YAML; the config names them by their outputs as the YAML does, for who reads
    the folder otherwise. t2d is no parameter there."""
    return ExportPlan(_tensors(checkpoint, "d2t"), _config(checkpoint, "EAGLE3LlamaForCausalLM", _ids(checkpoint, 0)))


def modelopt(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """ModelOpt's template: layers by their outputs; its exporter has no t2d and says what its module was made with."""
    config = _config(checkpoint, "LlamaForCausalLMEagle3", _ids(checkpoint, 0))
    options = {
        **{"use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False},
        **{"next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1},
    }
    further = {"initializer_range": 0.02, "attention_dropout": 0.0, "pretraining_tp": 1}
    return ExportPlan(
        _tensors(checkpoint, "d2t"), {**config, **further, "eagle_config": {**config["eagle_config"], **options}}
    )


def _tensors(checkpoint: CheckpointFiles, *maps: str) -> list:
    """All but those maps of the vocabulary that the server has none for; no map where the vocabulary is whole."""
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
    """EAGLE-3.1's switches, which vLLM and speculators read, and SGLang all but the first."""
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: bool(checkpoint.config.get(name)) for name in names}


def _ids(checkpoint: CheckpointFiles, added: int) -> dict[str, list[int]]:
    """Output ids plus `added`; left out where they are what every server takes by itself: a server that counts
    otherwise then cannot misread them."""
    if checkpoint.aux_layers == checkpoint.usual_aux_layers:
        return {}
    return {IDS: [layer + added for layer in checkpoint.aux_layers]}
