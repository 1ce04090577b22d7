"""Medusa heads as vLLM, TensorRT-LLM and the Medusa repository load them. If heads share the base model's lm_head, its
matrix is written too, because no server uses the target's. No torch at import.
"""

import array
import json
from dataclasses import replace
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.plan import ExportPlan, TensorSource, cast, constant, from_entry, widen
from models.methods.trees import nodes

HEADS = "medusa_lm_head"


def vllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """`blocks.{h}.layers.{l}`. A shared matrix is written once (`original_lm_head`); only a shared matrix may have
    fewer rows (`token_map`). No other key may contain `num` with `heads` or `layers`: vLLM's config class reads any
    such key as the number of heads or layers."""
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


def trtllm(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """The repository's layout with both keys for the number of heads: config.py and model.py of TensorRT-LLM read
    different ones. Older releases read only the `.pt` file."""
    plan = medusa(checkpoint, base, facts)
    extra = {
        "num_medusa_heads": checkpoint.config["medusa_num_heads"],
        "hidden_size": checkpoint.hidden_size,
        "vocab_size": checkpoint.vocab_size,
    }
    texts = {"medusa_choices.json": json.dumps(choices(checkpoint)) + "\n"}
    return replace(plan, config={**plan.config, **extra}, texts=texts)


def medusa(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """`{h}.{l}.linear` and `{h}.{L}`. No `model_type`: the repository would read the config as the base model's. No
    `architectures`: TGI would not recognise the folder as Medusa heads."""
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
    """All nodes of the tuned tree as paths of ranks; for an untuned draft, a chain of the best tokens."""
    tree = checkpoint.config.get("drafting", {}).get("tree") or [[0] * checkpoint.config["medusa_num_heads"]]
    return [list(path) for path in sorted(nodes(tree), key=lambda path: (len(path), path))]


def _blocks(checkpoint: CheckpointFiles, pattern: str) -> list[TensorSource]:
    sources = []
    for name, entry in checkpoint.tensors.items():
        if name.startswith("blocks."):
            _, head, layer, _, kind = name.split(".")
            source = from_entry(entry, pattern.format(head=head, layer=layer, kind=kind))
            sources.append(widen(source, checkpoint.written_type))
    return sources


def _matrix(checkpoint: CheckpointFiles, base: Any, head: int, name: str) -> TensorSource:
    """Output matrix of a head: its own, the reduced one that all heads share, or the base model's."""
    shared = bool(checkpoint.config.get("medusa_tie_lm_head"))
    if shared and not checkpoint.small_vocabulary:
        shape = (checkpoint.vocab_size, checkpoint.hidden_size)
        return cast(name, shape, checkpoint.written_type, lambda: base.lm_head.weight)
    return from_entry(checkpoint.tensors[f"lm_heads.{0 if shared else head}.weight"], name)


def _token_map(checkpoint: CheckpointFiles) -> list[TensorSource]:
    """Token ids of the base model by draft id, int64; [] for a whole vocabulary."""
    if not checkpoint.small_vocabulary:
        return []
    offsets = array.array("q", b"".join(checkpoint.tensors["d2t"].chunks()))
    ids = array.array("q", (draft_id + offset for draft_id, offset in enumerate(offsets)))
    return [constant("token_map", "I64", (len(ids),), ids.tobytes())]
