"""Tensors and config that vLLM's EagleLlamaForCausalLM and SGLang's LlamaForCausalLMEagle load."""

from formats.checkpoint import CheckpointFiles
from tests.formats.table import FLOAT, TensorTable
from tests.formats.tables import layers


def vllm(checkpoint: CheckpointFiles) -> TensorTable:
    """`fc` without bias, embeddings and lm_head of the target, no norm before the first layer or after the last."""
    return _table(checkpoint, "LlamaForCausalLM", {})


def sglang(checkpoint: CheckpointFiles) -> TensorTable:
    """As for vLLM, with a bias of `fc`."""
    return _table(checkpoint, "LlamaForCausalLMEagle", {"fc.bias": ((checkpoint.hidden_size,), FLOAT)})


def _table(checkpoint: CheckpointFiles, architecture: str, extra: layers.Shapes) -> TensorTable:
    hidden, count = checkpoint.hidden_size, checkpoint.config["eagle_num_layers"]
    shapes: layers.Shapes = {"fc.weight": ((hidden, 2 * hidden), FLOAT), **extra}
    for index in range(count):
        shapes |= layers.layer(checkpoint, index, hidden)
        if index:
            shapes[f"layers.{index}.input_layernorm.weight"] = ((hidden,), FLOAT)
    if checkpoint.config.get("own_embeddings"):
        shapes["embed_tokens.weight"] = ((checkpoint.vocab_size, hidden), FLOAT)
    return TensorTable(shapes, layers.config(checkpoint, architecture, count), checkpoint.written_type)
