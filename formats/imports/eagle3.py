"""EAGLE-3 drafts of the EAGLE repository, SpecForge, SGLang, vLLM, ModelOpt and speculators.

They agree on the tensors, but for `midlayer.` or `layers.0.`, and disagree on which layers
`eagle_aux_hidden_state_layer_ids` means: SGLang, SpecForge and ModelOpt count outputs of layers (0-based), vLLM and
speculators their inputs, one more for the same tensor. Where the ids are one of the two defaults, that settles it:
converted files carry the ids of where they came from.
"""

from typing import Any

import torch
from torch import Tensor

from formats.imports.base import BaseOutline
from formats.imports.draft import TABLE, ReadDraft, check_size, check_vocabulary, fill, own_embeddings
from formats.imports.layers import layer_config, layer_count, looks_back_less
from formats.imports.names import plain_name
from formats.imports.source import DraftSource, same_values
from formats.imports.vocabulary import draft_vocabulary
from speculoos.errors import BadInput, Unsupported

LAYER_IDS = "eagle_aux_hidden_state_layer_ids"
TWICE = "modelopt-eagle3-twice"
"""As modelopt-eagle3, drafted as ModelOpt's own module does since 0.41: see `norm_features_twice`."""
INPUT_IDS = ("vllm-eagle3", "speculators")
"""Layouts whose layer ids name inputs of layers."""


def read(source: DraftSource, base: BaseOutline, layout: str) -> ReadDraft:
    """The draft as EAGLE-3's network. Raises BadInput or Unsupported, naming the key that is at fault."""
    source.rename(plain_name)
    _check_known(source)
    check_vocabulary(source, base)
    hidden = source.fields.number("hidden_size", source.shape("norm.weight")[0])
    _check_target(source, base, hidden)
    layers, counted = _aux_layers(source, base, layout, _fused(source, hidden, base.hidden_size))
    config = layer_config(source, hidden) | _options(source) | {"aux_layers": layers}
    config["norm_features_twice"] = layout == TWICE
    given = own_embeddings(source, base, hidden)
    head, notices = _head(source, base, hidden, given.get(TABLE))
    given |= head
    config |= {
        "vocab_size": base.vocab_size,
        "draft_vocab_size": len(given["d2t"]),
        "target_hidden_size": 0 if hidden == base.hidden_size else base.hidden_size,
        "own_embeddings": TABLE in given,
    }
    draft = fill("eagle3", config, source, base, given)
    draft.notices += [*notices, *filter(None, [counted, looks_back_less(source.fields)])]
    return draft


def _check_known(source: DraftSource) -> None:
    """Refuse variants that are other networks under the same names."""
    fields = source.fields
    if fields.get("use_aux_hidden_state") is False:
        raise Unsupported(
            f"{source.where}: use_aux_hidden_state is false; only drafts that fuse layers are known here."
        )
    if (step := fields.get("parallel_draft_step") or 1) != 1:
        raise Unsupported(f"{source.where}: parallel_draft_step {step}: parallel drafting is not known here.")
    if not source.has("layers.0.hidden_norm.weight"):
        raise BadInput(f"{source.name}: the tensor layers.0.hidden_norm.weight is missing; fetch the draft again.")


def _options(source: DraftSource) -> dict[str, Any]:
    """Switches of the network: by the tensors where there are some, else by the config."""
    fields = source.fields
    each, joined = source.has("fc_norm.0.weight"), source.has("input_norm.weight")
    for key, there in (("fc_norm", each), ("norm_before_fc", joined)):
        if fields.flag(key) != there and fields.get(key) is not None:
            told = "is true and its tensors are missing" if not there else "is false and its tensors are there"
            raise BadInput(f"{source.where}: {key} {told}; restore the config.json that came with them.")
    return {
        "norm_before_residual": fields.flag("norm_before_residual"),
        "norm_output": fields.flag("norm_output") or fields.flag("return_hidden_post_norm"),
        "fc_norm": each,
        "norm_before_fc": joined,
        "fc_bias": source.has("fc.bias"),
        "eagle_num_layers": layer_count(source),
    }


def _check_target(source: DraftSource, base: BaseOutline, hidden: int) -> None:
    """The base is as wide as the config says, or, where it does not, as the draft."""
    stated = source.fields.number("target_hidden_size", 0)
    key = "target_hidden_size" if stated else "hidden_size"
    check_size(source, base, key, stated or hidden, base.hidden_size)


def _fused(source: DraftSource, hidden: int, target: int) -> int:
    """How many layers `fc` [hidden, layers · target] takes. Raises BadInput for another shape."""
    shape = source.shape("fc.weight")
    if len(shape) == 2 and shape[0] == hidden and shape[1] % target == 0:
        return shape[1] // target
    source.take("fc.weight", (hidden, 3 * target))
    raise AssertionError("fc.weight has the shape it should not have")


def _aux_layers(source: DraftSource, base: BaseOutline, layout: str, fused: int) -> tuple[tuple[int, ...], str]:
    """Base layers whose outputs are fused (0-based), and a notice where ids are read against their format. Raises
    BadInput for ids that are out of range or too many."""
    ids = source.fields.get(LAYER_IDS) or source.fields.get("aux_hidden_state_layer_ids") or ()
    if not isinstance(ids, list | tuple) or not all(type(i) is int for i in ids):
        raise BadInput(f"{source.where}: {LAYER_IDS}: expected a list of whole numbers, got {str(ids)[:60]!r}.")
    usual = 1 if layout in INPUT_IDS else 0
    shift = _shift(tuple(ids), usual if ids else 0, source, base)
    ids = ids or base.default_layers
    if len(ids) != fused:
        raise BadInput(
            f"{source.where}: {LAYER_IDS} names {len(ids)} layers, and {source.their('fc.weight')} takes {fused}."
        )
    _check_once(tuple(ids), source, base)
    if wrong := [i for i in ids if not shift <= i < base.num_layers + shift]:
        last = base.num_layers - 1 + shift
        raise BadInput(
            f"{source.where}: {LAYER_IDS}: the base {base.name} has layers {shift} to {last} as this format counts "
            f"them, got {wrong[0]}."
        )
    return tuple(i - shift for i in ids), _said(ids, shift) if shift != usual and source.fields.get(LAYER_IDS) else ""


def _check_once(ids: tuple[int, ...], source: DraftSource, base: BaseOutline) -> None:
    """Raise BadInput where a layer is named twice, which no server reads so; a base of few layers has such defaults."""
    repeated = next((i for i in ids if ids.count(i) > 1), None)
    if repeated is not None and ids not in (base.default_layers, tuple(i + 1 for i in base.default_layers)):
        raise BadInput(
            f"{source.where}: {LAYER_IDS} names layer {repeated} more than once, and each is fused once; restore the "
            "config.json that came with the draft."
        )


def _shift(ids: tuple[int, ...], usual: int, source: DraftSource, base: BaseOutline) -> int:
    """1 where ids name inputs of layers, 0 where they name outputs: as their format does (`usual`), unless they are a
    default of the others and nobody said which format it is."""
    if source.layout_given:
        return usual
    for shift in (0, 1):
        if ids == tuple(i + shift for i in base.default_layers):
            return shift
    return usual


def _said(ids: Any, shift: int) -> str:
    what = ("outputs", "inputs")[shift]
    return (
        f"{LAYER_IDS}: {list(ids)} were read as {what} of layers, whose default they are; --format decides otherwise."
    )


def _head(
    source: DraftSource, base: BaseOutline, hidden: int, table: Tensor | None
) -> tuple[dict[str, Tensor], list[str]]:
    """lm_head.weight, d2t and t2d, and what there is to say. A head that is missing is the embeddings where they are
    tied, else the base's."""
    stated, notices = source.fields.number("draft_vocab_size", 0), []
    tied = source.fields.flag("tie_word_embeddings")
    if source.has("lm_head.weight"):
        head = source.take("lm_head.weight", (stated or source.shape("lm_head.weight")[0], hidden))
        if tied and not _is_table(head, base, table):
            notices.append(
                "tie_word_embeddings: config.json says true, and lm_head.weight is no copy of the embeddings; "
                "the draft scores with lm_head.weight."
            )
    else:
        head, said = _borrowed_head(source, base, stated, table, tied)
        notices.append(said)
    d2t, t2d = draft_vocabulary(source, base, len(head))
    return {"lm_head.weight": head, "d2t": d2t, "t2d": t2d}, notices


def _is_table(head: Tensor, base: BaseOutline, table: Tensor | None) -> bool:
    other = base.embeddings if table is None else table
    return other is not None and same_values(head, other)


def _borrowed_head(
    source: DraftSource, base: BaseOutline, stated: int, table: Tensor | None, tied: bool
) -> tuple[Tensor, str]:
    if stated not in (0, base.vocab_size):
        raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and draft_vocab_size is {stated}.")
    if tied:
        head, said = (base.embeddings if table is None else table), "the embeddings (tie_word_embeddings is true)"
    else:
        head, said = (base.head if table is None else None), f"the head of {base.name}"
    if head is None:
        raise BadInput(f"{source.name}: the tensor lm_head.weight is missing, and no other can stand for it.")
    return torch.clone(head), f"lm_head.weight: is not in the file; {said} stands for it."
