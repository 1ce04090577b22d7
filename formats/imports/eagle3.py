"""EAGLE-3 drafts of the EAGLE repository, SpecForge, SGLang, vLLM, ModelOpt and speculators.

Their tensors are the same, except for the prefix `midlayer.` or `layers.0.`. The meaning of
`eagle_aux_hidden_state_layer_ids` differs: SGLang, SpecForge and ModelOpt count outputs of layers (0-based), vLLM and
speculators count inputs, which is one more for the same tensor. If the ids are one of the two defaults, the default
decides, because converted files keep the ids of their original project.
"""

from typing import Any

import torch
from torch import Tensor

from formats.imports.base import BaseOutline
from formats.imports.draft import EMBEDDINGS, ImportedDraft, check_size, check_vocabulary, fill, own_embeddings
from formats.imports.layers import layer_config, layer_count, sliding_window_notice
from formats.imports.names import plain_name
from formats.imports.source import DraftSource, same_values
from speculoos.errors import BadInput, Unsupported

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
MODELOPT_TWICE = "modelopt-eagle3-twice"
"""As modelopt-eagle3, but drafts like ModelOpt's own module since 0.41: see `norm_features_twice`."""
INPUT_IDS = ("vllm-eagle3", "speculators")
"""Layouts whose layer ids count inputs of layers."""


def read(source: DraftSource, base: BaseOutline, layout: str) -> ImportedDraft:
    """The draft as EAGLE-3's network. Raises BadInput or Unsupported with the key at fault."""
    source.rename(plain_name)
    _check_supported(source)
    check_vocabulary(source, base)
    hidden = source.fields.number("hidden_size", source.shape("norm.weight")[0])
    target = source.fields.number("target_hidden_size", 0)
    check_size(source, base, "target_hidden_size" if target else "hidden_size", target or hidden, base.hidden_size)
    layers, layer_notice = _aux_layers(source, base, layout, hidden)
    config = layer_config(source, hidden) | _options(source) | {"aux_layers": layers}
    config["norm_features_twice"] = layout == MODELOPT_TWICE
    tensors = own_embeddings(source, base, hidden)
    head, notices = _head(source, base, hidden, tensors.get(EMBEDDINGS))
    tensors |= head
    config |= {
        "vocab_size": base.vocab_size,
        "draft_vocab_size": len(tensors["d2t"]),
        "target_hidden_size": 0 if hidden == base.hidden_size else base.hidden_size,
        "own_embeddings": EMBEDDINGS in tensors,
    }
    draft = fill("eagle3", config, source, base, tensors)
    draft.notices += [*notices, *filter(None, [layer_notice, sliding_window_notice(source.fields)])]
    return draft


def _check_supported(source: DraftSource) -> None:
    """Raise Unsupported for variants with another network and the same tensor names."""
    fields = source.fields
    if fields.get("use_aux_hidden_state") is False:
        raise Unsupported(
            f"{source.config_name}: use_aux_hidden_state is false; only drafts that fuse layers are supported."
        )
    if (step := fields.get("parallel_draft_step") or 1) != 1:
        raise Unsupported(f"{source.config_name}: parallel_draft_step {step}: parallel drafting is not supported.")
    if not source.has("layers.0.hidden_norm.weight"):
        raise BadInput(f"{source.name}: the tensor layers.0.hidden_norm.weight is missing; download the draft again.")


def _options(source: DraftSource) -> dict[str, Any]:
    """Options of the network, from the tensors where the option has tensors, else from the config."""
    fields = source.fields
    each, joined = source.has("fc_norm.0.weight"), source.has("input_norm.weight")
    for key, present in (("fc_norm", each), ("norm_before_fc", joined)):
        if fields.flag(key) != present and fields.get(key) is not None:
            fault = "is false and its tensors are present" if present else "is true and its tensors are missing"
            raise BadInput(f"{source.config_name}: {key} {fault}; restore the draft's original config.json.")
    return {
        "norm_before_residual": fields.flag("norm_before_residual"),
        "norm_output": fields.flag("norm_output") or fields.flag("return_hidden_post_norm"),
        "fc_norm": each,
        "norm_before_fc": joined,
        "fc_bias": source.has("fc.bias"),
        "eagle_num_layers": layer_count(source),
    }


def _aux_layers(source: DraftSource, base: BaseOutline, layout: str, hidden: int) -> tuple[tuple[int, ...], str]:
    """Layers of the base model whose outputs are fused (0-based), and a notice if the ids are not counted as in their
    format. Raises BadInput for a wrong number of ids, an id out of range or a repeated one."""
    shape, defaults = source.shape("fc.weight"), base.default_layers
    fused = shape[-1] // base.hidden_size
    if shape != (hidden, fused * base.hidden_size):
        source.take("fc.weight", (hidden, 3 * base.hidden_size))  # raises
    given = source.fields.get(LAYER_IDS) or source.fields.get("aux_hidden_state_layer_ids")
    ids = given or defaults
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        raise BadInput(f"{source.config_name}: {LAYER_IDS}: expected a list of whole numbers, got {str(ids)[:60]!r}.")
    ids, inputs = tuple(ids), tuple(i + 1 for i in defaults)
    format_shift = shift = 1 if layout in INPUT_IDS else 0
    if ids in (defaults, inputs) and not (source.layout_chosen and given):
        shift = int(ids == inputs)  # if the user chose no layout, a default is read as such
    if len(ids) != fused:
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS} has {len(ids)} layers, and {source.name_in_file('fc.weight')} "
            f"takes {fused}."
        )
    if len(set(ids)) < len(ids) and ids not in (defaults, inputs):  # those of a base model with few layers repeat
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS} has a layer more than once, which no server supports; restore the "
            "draft's original config.json."
        )
    if wrong := [i for i in ids if not shift <= i < base.num_layers + shift]:
        last = base.num_layers - 1 + shift
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS}: expected layers {shift} to {last} of the base model {base.name}, "
            f"got {wrong[0]}."
        )
    notice, kind = "", ("outputs", "inputs")[shift]
    if given and shift != format_shift:
        notice = (
            f"{LAYER_IDS}: {list(ids)} were read as {kind} of layers, because they are the default for {kind}; "
            "choose another meaning with --format."
        )
    return tuple(i - shift for i in ids), notice


def _head(
    source: DraftSource, base: BaseOutline, hidden: int, own: Tensor | None
) -> tuple[dict[str, Tensor], list[str]]:
    """lm_head.weight, d2t and t2d, and notices. If lm_head.weight is missing, it is the embeddings (if tied) or the
    base model's. `own` are the draft's own embeddings, if any."""
    stated, notices = source.fields.number("draft_vocab_size", 0), []
    tied = source.fields.flag("tie_word_embeddings")
    embeddings = base.embeddings if own is None else own
    if source.has("lm_head.weight"):
        head = source.take("lm_head.weight", (stated or source.shape("lm_head.weight")[0], hidden))
        if tied and not (embeddings is not None and same_values(head, embeddings)):
            notices.append(
                "tie_word_embeddings: config.json says true, but lm_head.weight differs from the embeddings; "
                "the draft uses lm_head.weight."
            )
    else:
        if stated not in (0, base.vocab_size):
            raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and draft_vocab_size is {stated}.")
        head = embeddings if tied else base.head if own is None else None
        if head is None:
            raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and there is no substitute for it.")
        head = torch.clone(head)
        origin = (
            "the embeddings are used (tie_word_embeddings is true)" if tied else f"the lm_head of {base.name} is used"
        )
        notices.append(f"lm_head.weight: not in the file; {origin}.")
    d2t, t2d = _vocabulary(source, base, len(head))
    return {"lm_head.weight": head, "d2t": d2t, "t2d": t2d}, notices


def _vocabulary(source: DraftSource, base: BaseOutline, size: int) -> tuple[Tensor, Tensor]:
    """d2t int64 [size] and t2d bool [V] of a head with `size` rows. `d2t` is optional for a head with all tokens, `t2d`
    always. Raises BadInput if `d2t` is missing, or they contradict each other."""
    if not source.has("d2t") and size != base.vocab_size:
        raise BadInput(
            f"{source.name}: the tensor d2t is missing: draft_vocab_size is {size} and the base model {base.name} has "
            f"{base.vocab_size} tokens, so the draft's tokens are unknown."
        )
    d2t = source.take("d2t", (size,)).long() if source.has("d2t") else torch.zeros(size, dtype=torch.int64)
    if size == base.vocab_size and torch.any(d2t):
        raise BadInput(f"{source.name}: d2t is not zero although the draft has all {size} tokens of the base model.")
    ids = torch.arange(size) + d2t
    if int(ids.min()) < 0 or int(ids.max()) >= base.vocab_size or len(ids.unique()) != size:
        raise BadInput(
            f"{source.name}: d2t must map to {size} different tokens of the base model's {base.vocab_size} "
            "(draft id i is token i + d2t[i]); download the draft again."
        )
    mask = torch.zeros(base.vocab_size, dtype=torch.bool)
    mask[ids] = True
    if source.has("t2d"):
        stored = source.take("t2d", tuple(mask.shape)).bool()
        unused = mask.all() or stored.all()  # a whole vocabulary, or the initial value of a trainer
        if not unused and not torch.equal(stored, mask):
            raise BadInput(f"{source.name}: t2d contains other tokens than d2t; download the draft again.")
    return d2t, mask
