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
from formats.imports.vocabulary import draft_vocabulary
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
    _check_target(source, base, hidden)
    layers, layer_notice = _aux_layers(source, base, layout, _fused(source, hidden, base.hidden_size))
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


def _check_target(source: DraftSource, base: BaseOutline, hidden: int) -> None:
    """Raise Unsupported if the base model's hidden size is not the config's target size or, without one, the
    draft's."""
    stated = source.fields.number("target_hidden_size", 0)
    key = "target_hidden_size" if stated else "hidden_size"
    check_size(source, base, key, stated or hidden, base.hidden_size)


def _fused(source: DraftSource, hidden: int, target: int) -> int:
    """Number of layers that `fc` [hidden, layers · target] fuses. Raises BadInput for another shape."""
    shape = source.shape("fc.weight")
    if len(shape) == 2 and shape[0] == hidden and shape[1] % target == 0:
        return shape[1] // target
    source.take("fc.weight", (hidden, 3 * target))
    raise AssertionError("fc.weight has the shape it should not have")


def _aux_layers(source: DraftSource, base: BaseOutline, layout: str, fused: int) -> tuple[tuple[int, ...], str]:
    """Layers of the base model whose outputs are fused (0-based), and a notice if the ids are not counted as in their
    format. Raises BadInput for a wrong number of ids or an id out of range."""
    ids = source.fields.get(LAYER_IDS) or source.fields.get("aux_hidden_state_layer_ids") or ()
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        raise BadInput(f"{source.config_name}: {LAYER_IDS}: expected a list of whole numbers, got {str(ids)[:60]!r}.")
    format_shift = 1 if layout in INPUT_IDS else 0
    shift = _shift(tuple(ids), format_shift if ids else 0, source, base)
    ids = ids or base.default_layers
    if len(ids) != fused:
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS} has {len(ids)} layers, and {source.name_in_file('fc.weight')} "
            f"takes {fused}."
        )
    _check_once(tuple(ids), source, base)
    if wrong := [i for i in ids if not shift <= i < base.num_layers + shift]:
        last = base.num_layers - 1 + shift
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS}: expected layers {shift} to {last} of the base model {base.name}, "
            f"got {wrong[0]}."
        )
    guessed = shift != format_shift and source.fields.get(LAYER_IDS)
    return tuple(i - shift for i in ids), _guess_notice(ids, shift) if guessed else ""


def _check_once(ids: tuple[int, ...], source: DraftSource, base: BaseOutline) -> None:
    """Raise BadInput if a layer is repeated, which no server supports, unless the ids are the defaults of a base model
    with few layers."""
    repeated = next((i for i in ids if ids.count(i) > 1), None)
    if repeated is not None and ids not in (base.default_layers, tuple(i + 1 for i in base.default_layers)):
        raise BadInput(
            f"{source.config_name}: {LAYER_IDS} has layer {repeated} more than once; restore the draft's original "
            "config.json."
        )


def _shift(ids: tuple[int, ...], format_shift: int, source: DraftSource, base: BaseOutline) -> int:
    """1 if ids count inputs of layers, 0 if they count outputs. This is `format_shift`, unless the user chose no layout
    and the ids are one of the two defaults."""
    if source.layout_chosen:
        return format_shift
    for shift in (0, 1):
        if ids == tuple(i + shift for i in base.default_layers):
            return shift
    return format_shift


def _guess_notice(ids: Any, shift: int) -> str:
    kind = ("outputs", "inputs")[shift]
    return (
        f"{LAYER_IDS}: {list(ids)} were read as {kind} of layers, because they are the default for {kind}; "
        "choose another meaning with --format."
    )


def _head(
    source: DraftSource, base: BaseOutline, hidden: int, embeddings: Tensor | None
) -> tuple[dict[str, Tensor], list[str]]:
    """lm_head.weight, d2t and t2d, and notices. If lm_head.weight is missing, it is the embeddings (if tied) or the
    base model's. `embeddings` are the draft's own, if any."""
    stated, notices = source.fields.number("draft_vocab_size", 0), []
    tied = source.fields.flag("tie_word_embeddings")
    if source.has("lm_head.weight"):
        head = source.take("lm_head.weight", (stated or source.shape("lm_head.weight")[0], hidden))
        if tied and not _is_tied(head, base, embeddings):
            notices.append(
                "tie_word_embeddings: config.json says true, but lm_head.weight differs from the embeddings; "
                "the draft uses lm_head.weight."
            )
    else:
        head, notice = _borrowed_head(source, base, stated, embeddings, tied)
        notices.append(notice)
    d2t, t2d = draft_vocabulary(source, base, len(head))
    return {"lm_head.weight": head, "d2t": d2t, "t2d": t2d}, notices


def _is_tied(head: Tensor, base: BaseOutline, embeddings: Tensor | None) -> bool:
    other = base.embeddings if embeddings is None else embeddings
    return other is not None and same_values(head, other)


def _borrowed_head(
    source: DraftSource, base: BaseOutline, stated: int, embeddings: Tensor | None, tied: bool
) -> tuple[Tensor, str]:
    if stated not in (0, base.vocab_size):
        raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and draft_vocab_size is {stated}.")
    if tied:
        head = base.embeddings if embeddings is None else embeddings
        origin = "the embeddings are used (tie_word_embeddings is true)"
    else:
        head, origin = (base.head if embeddings is None else None), f"the lm_head of {base.name} is used"
    if head is None:
        raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and there is no substitute for it.")
    return torch.clone(head), f"lm_head.weight: not in the file; {origin}."
