"""EAGLE-1 as vLLM and SGLang load it: our tensors have the reference's names already; embeddings and head are the
target's and never written. No torch.
"""

from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import Facts
from formats.plan import ExportPlan, from_entry, zeros
from formats.writers import llama


def vllm(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """vLLM makes the class of method and architecture: LlamaForCausalLM becomes EagleLlamaForCausalLM. `fc` has no
    bias there."""
    tensors = [from_entry(entry) for entry in checkpoint.tensors.values()]
    return ExportPlan(tensors, _config(checkpoint, "LlamaForCausalLM"))


def sglang(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """SGLang's `fc` has a bias that stays as memory was where the file has none: a zero one is written then."""
    plan = vllm(checkpoint, base, facts)
    bias = zeros("fc.bias", checkpoint.written_type, (checkpoint.hidden_size,))
    further = [] if "fc.bias" in checkpoint.tensors else [bias]
    return ExportPlan([*plan.tensors, *further], _config(checkpoint, "LlamaForCausalLMEagle"))


def _config(checkpoint: CheckpointFiles, architecture: str) -> dict[str, Any]:
    return llama.config(checkpoint, architecture, checkpoint.config["eagle_num_layers"])
