"""The GGUF files of drafts, as llama.cpp loads them. No torch at import."""

import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.gguf_files import model_plan
from formats.gguf_models import gguf_name, interleaved, rope_tensors, size_keys
from formats.plan import ExportPlan, TensorSource, from_entry
from models.identity import first_set

OWN_NAMES = {
    "fc.weight": "fc.weight",
    "input_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "embed_tokens.weight": "token_embd.weight",
    "layers.0.hidden_norm.weight": "blk.0.attn_norm_2.weight",
}
"""{name of an EAGLE-3 tensor: llama.cpp's, where it is not the name in a Llama model}."""
MAPS = ("d2t", "t2d")


def eagle3_gguf(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """Architecture `eagle3`: layer ids count inputs (output + 1), `d2t` has token ids of the base model, whose
    tokenizer is written too. Older releases of llama.cpp read the ids as `extract_layers`."""
    config = dict(checkpoint.config)
    heads = config["num_attention_heads"]
    counts = {"attn_q": heads, "attn_k": config["num_key_value_heads"]}
    sources: list[TensorSource] = []
    for name, entry in checkpoint.tensors.items():
        if name in MAPS:
            continue
        source = from_entry(entry, OWN_NAMES.get(name) or gguf_name(name))
        count = counts.get(source.name.split(".")[-2])
        sources.append(interleaved(source, count) if count else source)
    if checkpoint.small_vocabulary:
        sources.append(absolute_ids(from_entry(checkpoint.tensors["d2t"])))
    config["max_position_embeddings"] = first_set(checkpoint.base, "max_position_embeddings", "n_positions")
    inputs = [layer + 1 for layer in checkpoint.aux_layers]
    keys = {
        "general.architecture": "eagle3",
        **size_keys("eagle3", config, 1, checkpoint.vocab_size),
        "eagle3.target_layers": inputs,
        "eagle3.extract_layers": inputs,
        "eagle3.target_hidden_size": config.get("target_hidden_size") or checkpoint.hidden_size,
        **{f"eagle3.{name}": bool(config.get(name)) for name in ("norm_before_residual", "norm_before_fc")},
    }
    tensors = [*sources, *rope_tensors(config)]
    return ExportPlan(tensors, keys, weights="draft-f32.gguf", tokenizer=checkpoint.base_path)


def draft_gguf(checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
    """A standalone draft is a model of its own, with the base model's tokenizer."""
    entries = list(checkpoint.tensors.values())
    plan = model_plan(checkpoint.path, dict(checkpoint.config), entries, checkpoint.base_path)
    return replace(plan, weights="draft-f32.gguf")


def absolute_ids(d2t: TensorSource) -> TensorSource:
    """Token ids of the base model, from the offsets that drafts have."""

    def chunks() -> Iterator[bytes]:
        offsets = array.array("q", b"".join(d2t.chunks()))
        yield array.array("q", (draft_id + offset for draft_id, offset in enumerate(offsets))).tobytes()

    return replace(d2t, chunks=chunks)
