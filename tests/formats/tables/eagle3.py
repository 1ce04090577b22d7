"""Tensors and config that the EAGLE-3 classes of vLLM, speculators, SGLang, TensorRT-LLM and ModelOpt load."""

from typing import Any

from formats.checkpoint import CheckpointFiles
from tests.formats.table import FLOAT, TensorTable
from tests.formats.tables import layers

IDS = "eagle_aux_hidden_state_layer_ids"


def vllm(checkpoint: CheckpointFiles) -> TensorTable:
    """Eagle3LlamaForCausalLM; layer ids count inputs."""
    ids = _ids(checkpoint, [i + 1 for i in checkpoint.aux_layers])
    config = _config(checkpoint, "Eagle3LlamaForCausalLM", ids)
    config |= {**_norm_options(checkpoint), **ids}
    return TensorTable(_tensors(checkpoint, "d2t", "t2d"), config, checkpoint.written_type)


def speculators(checkpoint: CheckpointFiles) -> TensorTable:
    """Eagle3DraftModel; layer ids count inputs, the layer's config is nested."""
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "verifier": {"architectures": checkpoint.base.get("architectures") or []},
        },
        "transformer_layer_config": layers.config(checkpoint, "LlamaForCausalLM", _count(checkpoint)),
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "target_hidden_size": None,
        **_norm_options(checkpoint),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
        IDS: [i + 1 for i in checkpoint.aux_layers],
    }
    free = ("speculators_version", "speculators_config.proposal_methods", "speculators_config.verifier.name_or_path")
    return TensorTable(_tensors(checkpoint, "d2t", "t2d"), config, checkpoint.written_type, frozenset(free))


def sglang(checkpoint: CheckpointFiles) -> TensorTable:
    """LlamaForCausalLMEagle3; layer ids count outputs."""
    config = _config(checkpoint, "LlamaForCausalLMEagle3", _ids(checkpoint, list(checkpoint.aux_layers)))
    config |= {name: value for name, value in _norm_options(checkpoint).items() if name != "norm_before_residual"}
    return TensorTable(_tensors(checkpoint, "d2t", "t2d"), config, checkpoint.written_type)


def trtllm(checkpoint: CheckpointFiles) -> TensorTable:
    """Eagle3ForCausalLM; the server reads layers from the YAML. Layer ids count outputs, as in the YAML."""
    config = _config(checkpoint, "EAGLE3LlamaForCausalLM", _ids(checkpoint, list(checkpoint.aux_layers)))
    norms = _norm_options(checkpoint)
    config["eagle_config"] |= {"norm_before_fc": norms["norm_before_fc"]}
    config |= {name: norms[name] for name in ("fc_norm", "norm_output")}
    return TensorTable(_tensors(checkpoint, "d2t"), config, checkpoint.written_type)


def modelopt(checkpoint: CheckpointFiles) -> TensorTable:
    """LLAMA_EAGLE_SINGLE_LAYER and the template config of ModelOpt; layer ids count outputs."""
    config = _config(checkpoint, "LlamaForCausalLMEagle3", _ids(checkpoint, list(checkpoint.aux_layers)))
    config["eagle_config"] |= {
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
        "parallel_draft_heads_num_layers": 1,
    }
    free = frozenset({"initializer_range", "attention_dropout", "pretraining_tp"})
    return TensorTable(_tensors(checkpoint, "d2t"), config, checkpoint.written_type, free)


def _config(checkpoint: CheckpointFiles, architecture: str, ids: dict[str, Any]) -> dict[str, Any]:
    return {
        **layers.config(checkpoint, architecture, _count(checkpoint)),
        "draft_vocab_size": checkpoint.draft_vocab_size,
        "target_hidden_size": _target_width(checkpoint),
        "eagle_config": {"use_aux_hidden_state": True, **ids},
    }


def _norm_options(checkpoint: CheckpointFiles) -> dict[str, bool]:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: checkpoint.config.get(name, False) for name in names}


def _count(checkpoint: CheckpointFiles) -> int:
    return checkpoint.config.get("eagle_num_layers", 1)


def _target_width(checkpoint: CheckpointFiles) -> int:
    """The base model's hidden size."""
    return checkpoint.config.get("target_hidden_size") or checkpoint.hidden_size


def _ids(checkpoint: CheckpointFiles, ids: list[int]) -> dict[str, list[int]]:
    """The config key of the layer ids; no key for the default of all servers."""
    return {} if checkpoint.aux_layers == checkpoint.default_aux_layers else {IDS: ids}


def _tensors(checkpoint: CheckpointFiles, *maps: str) -> layers.Shapes:
    hidden, columns, fused = checkpoint.hidden_size, checkpoint.draft_vocab_size, len(checkpoint.aux_layers)
    shapes: layers.Shapes = {
        "fc.weight": ((hidden, fused * _target_width(checkpoint)), FLOAT),
        **{f"layers.0.{name}.weight": ((hidden,), FLOAT) for name in ("input_layernorm", "hidden_norm")},
        **layers.layer(checkpoint, 0, 2 * hidden),
        "norm.weight": ((hidden,), FLOAT),
        "lm_head.weight": ((columns, hidden), FLOAT),
    }
    for index in range(1, _count(checkpoint)):
        shapes |= layers.layer(checkpoint, index, hidden)
        shapes[f"layers.{index}.input_layernorm.weight"] = ((hidden,), FLOAT)
    if checkpoint.config.get("norm_before_fc"):
        shapes["input_norm.weight"] = ((fused * _target_width(checkpoint),), FLOAT)
    if checkpoint.config.get("fc_norm"):
        shapes |= {f"fc_norm.{index}.weight": ((_target_width(checkpoint),), FLOAT) for index in range(fused)}
    if checkpoint.config.get("own_embeddings"):
        shapes["embed_tokens.weight"] = ((checkpoint.vocab_size, hidden), FLOAT)
    map_shapes = {"d2t": ((columns,), "I64"), "t2d": ((checkpoint.vocab_size,), "BOOL")}
    return shapes | ({name: map_shapes[name] for name in maps} if checkpoint.small_vocabulary else {})
