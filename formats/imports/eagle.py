"""EAGLE-1 (and EAGLE-2, HASS) drafts: `fc` over embedding and feature, then Llama layers; the base's head.

Sources: SafeAILab/EAGLE (`cnets1.py`), vLLM (`llama_eagle.py`), SGLang (`LlamaForCausalLMEagle`). What they disagree
about is `fc.bias`: the tensors decide; a bias of zeros, which SGLang wants, is left out.
"""

import torch
from torch import Tensor

from formats.imports.base import BaseOutline
from formats.imports.draft import TABLE, ReadDraft, check_size, check_vocabulary, fill, own_embeddings
from formats.imports.layers import layer_config, layer_count, looks_back_less
from formats.imports.names import plain_name
from formats.imports.source import DraftSource, same_values
from speculoos.errors import BadInput, Unsupported


def read(source: DraftSource, base: BaseOutline, layout: str) -> ReadDraft:
    """The draft as EAGLE-1's network. Raises BadInput or Unsupported, naming the key that is at fault."""
    source.rename(plain_name)
    hidden = source.fields.number("hidden_size", source.shape("fc.weight")[0])
    check_size(source, base, "hidden_size", hidden, base.hidden_size)
    check_vocabulary(source, base)
    config = layer_config(source, hidden)
    given = own_embeddings(source, base, hidden)
    bias, said = _fc_bias(source)
    if bias is not None:
        given["fc.bias"] = bias
    _drop_base_head(source, base)
    config |= {
        "vocab_size": base.vocab_size,
        "eagle_num_layers": layer_count(source),
        "use_input_layernorm_in_first_layer": source.has("layers.0.input_layernorm.weight"),
        "use_last_layernorm": source.has("norm.weight"),
        "fc_bias": bias is not None,
        "own_embeddings": TABLE in given,
    }
    draft = fill("eagle", config, source, base, given)
    draft.notices += [notice for notice in (said, looks_back_less(source.fields)) if notice]
    return draft


def _fc_bias(source: DraftSource) -> tuple[Tensor | None, str]:
    """`fc.bias`, None where there is none or it is zero, and a notice."""
    stated = source.fields.get("bias")
    if not source.has("fc.bias"):
        if stated is True:
            raise BadInput(f"{source.name}: the tensor fc.bias is missing, and config.json says bias true.")
        return None, ""
    bias = source.take("fc.bias", (source.shape("fc.weight")[0],))
    if not torch.any(bias):
        return None, "fc.bias: is zero throughout and was left out."
    if stated is False:
        raise BadInput(f"{source.name}: fc.bias is there and not zero, but config.json says bias false; remove one.")
    return bias, ""


def _drop_base_head(source: DraftSource, base: BaseOutline) -> None:
    """An lm_head in the file must be the base's: EAGLE-1 scores with that."""
    if not source.has("lm_head.weight"):
        return
    head = source.take("lm_head.weight")
    if base.head is None or not same_values(head, base.head):
        raise Unsupported(
            f"{source.name}: lm_head.weight is not the base's; EAGLE-1 scores with the head of its base, "
            "so this draft belongs to another one."
        )
