"""Tensors and config that the Medusa loaders of vLLM, TensorRT-LLM and the Medusa repository read."""

from dataclasses import replace

from formats.checkpoint import CheckpointFiles
from tests.formats.table import FLOAT, TensorTable
from tests.formats.tables.layers import Shapes

HEADS = "medusa_lm_head"


def vllm(checkpoint: CheckpointFiles) -> TensorTable:
    """Blocks, and one matrix for every head or one for all."""
    (heads, layers), shared = _counts(checkpoint), bool(checkpoint.config.get("medusa_tie_lm_head"))
    hidden, columns = checkpoint.hidden_size, checkpoint.draft_vocab_size
    tensors: Shapes = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"blocks.{head}.layers.{layer}.weight"] = ((hidden, hidden), FLOAT)
            tensors[f"blocks.{head}.layers.{layer}.bias"] = ((hidden,), FLOAT)
        if head == 0 or not shared:
            tensors[f"lm_heads.{head}.weight"] = ((columns, hidden), FLOAT)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": checkpoint.vocab_size,
        "truncated_vocab_size": columns,
        "num_heads": heads,
        "num_hidden_layers": layers,
        "medusa_fc_bias": True,
        "original_lm_head": shared,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }
    return TensorTable(tensors, config, checkpoint.written_type)


def medusa(checkpoint: CheckpointFiles) -> TensorTable:
    """The state dict of `medusa_head`, as safetensors for TGI and pickled for the repository."""
    heads, layers = _counts(checkpoint)
    hidden = checkpoint.hidden_size
    tensors: Shapes = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{head}.{layer}.linear.weight"] = ((hidden, hidden), FLOAT)
            tensors[f"{head}.{layer}.linear.bias"] = ((hidden,), FLOAT)
        tensors[f"{head}.{layers}.weight"] = ((checkpoint.vocab_size, hidden), FLOAT)
    return TensorTable(
        tensors,
        {"medusa_num_heads": heads, "medusa_num_layers": layers, "torch_dtype": checkpoint.dtype},
        checkpoint.written_type,
        frozenset({"base_model_name_or_path"}),
        f"{HEADS}.safetensors",
        (f"{HEADS}.pt",),
    )


def trtllm(checkpoint: CheckpointFiles) -> TensorTable:
    """The same tensors, both keys for the number of heads, and the tree for `--medusa_choices`."""
    table, heads = medusa(checkpoint), checkpoint.config["medusa_num_heads"]
    extra = {"num_medusa_heads": heads, "hidden_size": checkpoint.hidden_size, "vocab_size": checkpoint.vocab_size}
    return replace(table, config={**table.config, **extra}, files=(*table.files, "medusa_choices.json"))


def _counts(checkpoint: CheckpointFiles) -> tuple[int, int]:
    return checkpoint.config["medusa_num_heads"], checkpoint.config["medusa_num_layers"]
