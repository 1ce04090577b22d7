"""EAGLE-1 (and EAGLE-2, HASS) drafts: `fc` over embedding and feature, then Llama layers; the base model's lm_head.

Sources: SafeAILab/EAGLE (`cnets1.py`), vLLM (`llama_eagle.py`), SGLang (`LlamaForCausalLMEagle`). They differ in
`fc.bias`, so the tensors decide; a bias of zeros, which SGLang needs, is dropped.
"""

import torch
from torch import Tensor

from formats.imports.base import BaseOutline
from formats.imports.draft import EMBEDDINGS, ImportedDraft, check_size, check_vocabulary, fill, own_embeddings
from formats.imports.layers import layer_config, layer_count, sliding_window_notice
from formats.imports.names import plain_name
from formats.imports.source import DraftSource, same_values
from speculoos.errors import BadInput, Unsupported


def read(source: DraftSource, base: BaseOutline, layout: str) -> ImportedDraft:
    """The draft as EAGLE-1's network. Raises BadInput or Unsupported with the key at fault."""
    source.rename(plain_name)
    hidden = source.fields.number("hidden_size", source.shape("fc.weight")[0])
    check_size(source, base, "hidden_size", hidden, base.hidden_size)
    check_vocabulary(source, base)
    config = layer_config(source, hidden)
    tensors = own_embeddings(source, base, hidden)
    bias, notice = _fc_bias(source)
    if bias is not None:
        tensors["fc.bias"] = bias
    _drop_base_head(source, base)
    config |= {
        "vocab_size": base.vocab_size,
        "eagle_num_layers": layer_count(source),
        "use_input_layernorm_in_first_layer": source.has("layers.0.input_layernorm.weight"),
        "use_last_layernorm": source.has("norm.weight"),
        "fc_bias": bias is not None,
        "own_embeddings": EMBEDDINGS in tensors,
    }
    draft = fill("eagle", config, source, base, tensors)
    draft.notices += filter(None, [notice, sliding_window_notice(source.fields)])
    return draft


def _fc_bias(source: DraftSource) -> tuple[Tensor | None, str]:
    stated = source.fields.get("bias")
    if not source.has("fc.bias"):
        if stated is True:
            raise BadInput(f"{source.name}: the tensor fc.bias is missing, and config.json says bias true.")
        return None, ""
    bias = source.take("fc.bias", (source.shape("fc.weight")[0],))
    if not torch.any(bias):
        return None, "fc.bias: all values are zero; it was dropped."
    if stated is False:
        raise BadInput(f"{source.name}: fc.bias exists and is not zero, but config.json says bias false; remove one.")
    return bias, ""


def _drop_base_head(source: DraftSource, base: BaseOutline) -> None:
    """Drop an lm_head in the file, which must be the base model's. Raises Unsupported if it is not."""
    if not source.has("lm_head.weight"):
        return
    head = source.take("lm_head.weight")
    if base.head is None or not same_values(head, base.head):
        raise Unsupported(
            f"{source.name}: lm_head.weight is not the lm_head of {base.name}, which EAGLE-1 uses; "
            "choose the base model the draft was trained for."
        )
