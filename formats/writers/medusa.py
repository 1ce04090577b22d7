"""Medusa heads as vLLM, TensorRT-LLM and the Medusa repository load them. Heads that share the base's matrix are
written out whole: no server takes the target's. No torch at import.
"""

import array
import json
from dataclasses import replace
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import Facts
from formats.plan import ExportPlan, TensorSource, cast, constant, from_entry, widen
from models.methods.trees import nodes

HEADS = "medusa_lm_head"


def vllm(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """`blocks.{h}.layers.{l}`; a shared matrix once, by `original_lm_head`, and only that may have fewer rows, by
    `token_map`. No key but two may have `num` with `heads` or `layers` in it: vLLM's config class takes any such key
    for these."""
    shape, shared = checkpoint.config, bool(checkpoint.config.get("medusa_tie_lm_head"))
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": checkpoint.hidden_size,
        "vocab_size": checkpoint.vocab_size,
        "truncated_vocab_size": checkpoint.draft_vocab_size,
        "num_heads": shape["medusa_num_heads"],
        "num_hidden_layers": shape["medusa_num_layers"],
        "medusa_fc_bias": True,
        "original_lm_head": shared,
        "tie_word_embeddings": False,
        "torch_dtype": checkpoint.dtype,
        "dtype": checkpoint.dtype,
    }
    blocks = _blocks(checkpoint, "blocks.{head}.layers.{layer}.{kind}")
    count = 1 if shared else shape["medusa_num_heads"]
    heads = [_matrix(checkpoint, base, h, f"lm_heads.{h}.weight") for h in range(count)]
    return ExportPlan([*blocks, *heads, *_token_map(checkpoint)], config)


def trtllm(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """The repository's layout with all three names for the number of heads and layers: config.py and model.py of
    TensorRT-LLM read different ones. Older releases read the `.pt` only."""
    plan = medusa(checkpoint, base, facts)
    further = {
        "num_medusa_heads": checkpoint.config["medusa_num_heads"],
        "hidden_size": checkpoint.hidden_size,
        "vocab_size": checkpoint.vocab_size,
    }
    texts = {"medusa_choices.json": json.dumps(choices(checkpoint)) + "\n"}
    return replace(plan, config={**plan.config, **further}, texts=texts)


def medusa(checkpoint: CheckpointFiles, base: Any, facts: Facts) -> ExportPlan:
    """`{h}.{l}.linear` and `{h}.{L}`. Neither `model_type` nor `architectures`: with the one the repository takes the
    config for the base's, with the other TGI takes the folder for no Medusa at all."""
    shape = checkpoint.config
    config = {
        "base_model_name_or_path": facts.location,
        "medusa_num_heads": shape["medusa_num_heads"],
        "medusa_num_layers": shape["medusa_num_layers"],
        "torch_dtype": checkpoint.dtype,
    }
    blocks = _blocks(checkpoint, "{head}.{layer}.linear.{kind}")
    last = shape["medusa_num_layers"]
    heads = [_matrix(checkpoint, base, h, f"{h}.{last}.weight") for h in range(shape["medusa_num_heads"])]
    return ExportPlan([*blocks, *heads], config, weights=f"{HEADS}.safetensors", pickled=f"{HEADS}.pt")


def choices(checkpoint: CheckpointFiles) -> list[list[int]]:
    """The tuned tree, every node a path of ranks; a chain of first choices where none was tuned."""
    tree = checkpoint.config.get("drafting", {}).get("tree") or [[0] * checkpoint.config["medusa_num_heads"]]
    return [list(path) for path in sorted(nodes(tree), key=lambda path: (len(path), path))]


def _blocks(checkpoint: CheckpointFiles, pattern: str) -> list[TensorSource]:
    """Weights and biases of every residual block, named by `pattern`."""
    sources = []
    for name, entry in checkpoint.tensors.items():
        if name.startswith("blocks."):
            _, head, layer, _, kind = name.split(".")
            piece = from_entry(entry, pattern.format(head=head, layer=layer, kind=kind))
            sources.append(widen(piece, checkpoint.written_type))
    return sources


def _matrix(checkpoint: CheckpointFiles, base: Any, head: int, name: str) -> TensorSource:
    """Output matrix of a head: its own, the one that was cut for all of them, or the base's."""
    shared = bool(checkpoint.config.get("medusa_tie_lm_head"))
    if shared and not checkpoint.small_vocabulary:
        return cast(name, base.lm_head.weight, checkpoint.written_type)
    return from_entry(checkpoint.tensors[f"lm_heads.{0 if shared else head}.weight"], name)


def _token_map(checkpoint: CheckpointFiles) -> list[TensorSource]:
    """Token ids of the base by draft id, int64."""
    if not checkpoint.small_vocabulary:
        return []
    offsets = array.array("q", b"".join(checkpoint.tensors["d2t"].chunks()))
    ids = array.array("q", (place + offset for place, offset in enumerate(offsets)))
    return [constant("token_map", "I64", (len(ids),), ids.tobytes())]
