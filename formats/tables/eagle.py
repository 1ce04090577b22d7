"""What vLLM's EagleLlamaForCausalLM and SGLang's LlamaForCausalLMEagle load. No torch."""

from formats.checkpoint import Checkpoint
from formats.table import FLOAT, Table
from formats.tables import layers


def vllm(checkpoint: Checkpoint) -> Table:
    """`fc` without bias, embeddings and head from the target, no norm before the first layer nor after the last."""
    return Table(
        _tensors(checkpoint),
        layers.config(checkpoint, "LlamaForCausalLM", checkpoint.config["eagle_num_layers"]),
        checkpoint.written_type,
        why=layers.WHY,
    )


def sglang(checkpoint: Checkpoint) -> Table:
    """As vLLM, with the bias its `fc` has."""
    return Table(
        {**_tensors(checkpoint), "fc.bias": ((checkpoint.hidden_size,), FLOAT)},
        layers.config(checkpoint, "LlamaForCausalLMEagle", checkpoint.config["eagle_num_layers"]),
        checkpoint.written_type,
        why=layers.WHY,
    )


def _tensors(checkpoint: Checkpoint) -> layers.Shapes:
    hidden = checkpoint.hidden_size
    shapes: layers.Shapes = {"fc.weight": ((hidden, 2 * hidden), FLOAT)}
    for index in range(checkpoint.config["eagle_num_layers"]):
        shapes |= layers.layer(checkpoint, index, hidden)
        if index:
            shapes[f"layers.{index}.input_layernorm.weight"] = ((hidden,), FLOAT)
    if checkpoint.config.get("own_embeddings"):
        shapes["embed_tokens.weight"] = ((checkpoint.vocab_size, hidden), FLOAT)
    return shapes
