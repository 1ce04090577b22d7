"""DFlash drafts of z-lab, SpecForge, vLLM, SGLang, transformers and speculators.

The tensors have the same names, except in transformers' class (`encoder.fc`, `encoder.output_norm_enc`). z-lab's
`target_layer_ids` count outputs of layers (0-based), speculators' `aux_hidden_state_layer_ids` count inputs, which is
one more for the same tensor. `block_size` and `mask_token_id` are at the top level or in `dflash_config`.

Sources: z-lab/dflash (`model.py`), speculators (`models/dflash/`), vLLM (`qwen3_dflash.py`), transformers
(`muse_glimmer_assistant`)."""

from torch import Tensor

from formats.imports.eagle import layer_config, layer_count, vocabulary
from formats.imports.names import plain_name
from formats.imports.peagle import mask_token
from formats.imports.source import (
    DraftSource,
    ImportedDraft,
    check_size,
    check_vocabulary,
    fill,
    own_embeddings,
    same_values,
)
from models.methods.dflash import fused_layers
from speculoos.errors import BadInput, Unsupported

TRANSFORMERS = {"encoder.fc.weight": "fc.weight", "encoder.output_norm_enc.weight": "hidden_norm.weight"}
MASK_FILE = "mask_embedding.pt"
OTHER_NETWORKS = {
    "sample_from_anchor": "drafts at the known token too, as DSpark does",
    "causal": "has a causal mask within a block",
    "is_causal": "has a causal mask within a block",
    "attention_sink_bias": "has attention sinks",
    "add_swa_attention_sink_bias": "has attention sinks",
    "attention_value_scale": "scales its attention values",
    "use_swa": "has a sliding window in all layers",
}
"""{key of a config: what a draft with it does, which the workbench's network does not}."""


def read_dflash(source: DraftSource) -> ImportedDraft:
    """The draft as DFlash's network. Raises BadInput or Unsupported with the key at fault."""
    source.rename(lambda name: TRANSFORMERS.get(plain_name(name), plain_name(name)))
    _check_supported(source)
    check_vocabulary(source)
    fields, hidden = source.fields, source.fields.number("hidden_size", source.shape("norm.weight")[0])
    check_size(source, "hidden_size", hidden, source.base.hidden_size)
    config = {**layer_config(source, hidden), "aux_layers": _aux_layers(source, hidden)}
    if own_embeddings(source, hidden):
        raise Unsupported(
            f"{source.name}: embed_tokens.weight differs from the embeddings of {source.base.name}, which DFlash uses; "
            "choose the base model the draft was trained for."
        )
    config |= {
        "vocab_size": source.base.vocab_size,
        "dflash_num_layers": layer_count(source),
        "block_size": fields.number("block_size"),
        "mask_token_id": mask_token(source, "mask_token_id"),
    }
    tensors = _head(source, hidden)
    config["draft_vocab_size"] = len(tensors["d2t"]) if tensors else 0
    return fill("dflash", config, source, tensors)


def _check_supported(source: DraftSource) -> None:
    """Raise Unsupported for variants with another network and the same tensor names."""
    fields, name = source.fields, source.config_name
    for key, difference in OTHER_NETWORKS.items():
        if fields.get(key):
            raise Unsupported(f"{name}: {key}: this draft {difference}, which is not supported.")
    kinds = fields.get("layer_types")
    sliding = "sliding_attention" in kinds if isinstance(kinds, list) else fields.get("use_sliding_window") is True
    if sliding:
        raise Unsupported(
            f"{name}: sliding_window: this draft's attention has a sliding window, with which servers mask "
            "later tokens of a block; only drafts with full attention are supported."
        )
    if (source.folder / MASK_FILE).exists():
        raise Unsupported(f"{source.name}/{MASK_FILE}: drafts with a separate mask embedding are not supported.")


def _aux_layers(source: DraftSource, hidden: int) -> tuple[int, ...]:
    """Layers of the base model whose outputs are fused (0-based). Raises BadInput for invalid ids."""
    fields, layers, base = source.fields, source.base.base.num_layers, source.base
    inputs = source.layout == "speculators-dflash"
    key = "aux_hidden_state_layer_ids" if inputs else "target_layer_ids"
    count = source.shape("fc.weight")[-1] // base.hidden_size
    ids = fields.get(key) or [layer + inputs for layer in fused_layers(layers, count)]
    if not isinstance(ids, list) or not all(type(i) is int for i in ids):
        raise BadInput(f"{source.config_name}: {key}: expected a list of whole numbers, got {str(ids)[:60]!r}.")
    outputs = tuple(i - inputs for i in ids)
    if wrong := [i for i, output in zip(ids, outputs, strict=True) if not 0 <= output < layers]:
        raise BadInput(
            f"{source.config_name}: {key}: expected layers {int(inputs)} to {layers - 1 + inputs} of the base model "
            f"{base.name}, got {wrong[0]}."
        )
    if len(ids) != count:
        raise BadInput(f"{source.config_name}: {key} has {len(ids)} layers, and fc.weight takes {count}.")
    return outputs


def _head(source: DraftSource, hidden: int) -> dict[str, Tensor]:
    """lm_head.weight and d2t of a draft with a vocabulary or a head of its own; {} if it uses the base model's."""
    base, stated = source.base, source.fields.number("draft_vocab_size", source.base.vocab_size)
    if not source.has("lm_head.weight"):
        if stated != base.vocab_size:
            raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and draft_vocab_size is {stated}.")
        for name in ("d2t", "t2d"):
            if source.has(name):
                source.take(name)
        return {}
    head = source.take("lm_head.weight", (stated, hidden))
    d2t, _ = vocabulary(source, len(head))
    if stated == base.vocab_size and base.head is not None and same_values(head, base.head):
        return {}
    return {"lm_head.weight": head, "d2t": d2t}
