"""EAGLE-1 as vLLM and SGLang load it. The checkpoint's tensors already have the reference's names; embeddings and
lm_head are the target's and are not written. No torch.
"""

from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.plan import ExportPlan, constant, from_entry
from formats.writers import llama
from models.identity import SIZES


def vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """vLLM derives the class from method and architecture: LlamaForCausalLM becomes EagleLlamaForCausalLM. Its `fc` has
    no bias."""
    tensors = [from_entry(entry) for entry in checkpoint.tensors.values()]
    return ExportPlan(tensors, _config(checkpoint, "LlamaForCausalLM"))


def sglang(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """SGLang's `fc` has a bias, uninitialised if it is not in the file: a draft without a bias gets a bias of zeros."""
    plan = vllm(checkpoint, base, facts)
    dtype, size = checkpoint.written_type, checkpoint.hidden_size
    zeros = [] if "fc.bias" in checkpoint.tensors else [constant("fc.bias", dtype, (size,), bytes(SIZES[dtype] * size))]
    return ExportPlan([*plan.tensors, *zeros], _config(checkpoint, "LlamaForCausalLMEagle"))


def _config(checkpoint: CheckpointFiles, architecture: str) -> dict[str, Any]:
    return llama.config(checkpoint, architecture, checkpoint.config["eagle_num_layers"])
