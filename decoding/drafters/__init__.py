"""All drafters by name and their options: drafters without a checkpoint, and one for each method."""

from typing import Any

from decoding.drafters.base import Drafter, PlainDrafter
from decoding.drafters.mtp import make_mtp
from decoding.drafters.ngram import NgramDrafter
from decoding.probe import require_trees
from decoding.target import Target
from models.methods import METHODS, trees
from models.methods.eagle import DRAFTING
from speculoos.errors import BadInput

WITHOUT_DRAFT: dict[str, tuple[tuple[str, ...], Any]] = {
    "none": ((), lambda _target: PlainDrafter()),
    "ngram": (("depth", "width", "max_ngram", "min_ngram"), lambda _target, **options: NgramDrafter(**options)),
    "mtp": (DRAFTING, make_mtp),
}
"""Drafters without a checkpoint: options, and the function that makes one for a target."""


def make_drafter(target: Target, draft: Any = None, options: dict[str, Any] | None = None) -> Drafter:
    """The drafter for `draft` (from models.checkpoints.load_draft), or a drafter without a draft.

    options["drafter"]: none, ngram, mtp (the base model's own multi-token prediction layer), or the draft's method
    (default: the draft's method, or none without a draft). Further options by drafter:

    - ngram: `depth`, `width`, `max_ngram`, `min_ngram`
    - medusa: `tree` (Medusa choices: a list of ranks for each node or for each leaf)
    - dflash: `depth` (a chain) or `tree`; `sample` (as for eagle, default false)
    - eagle, eagle3, peagle, mtp: `tree` (a static tree), or `depth`, `top_k`, `nodes` (EAGLE-2's dynamic tree; top_k 1
      is a chain); `sample` (sample the children of a static tree if the generation samples)
    - draft (the id of standalone draft models): `depth` (a chain) or `tree`; `sample` (default true)

    Without any of these, the tuned options of the checkpoint are used, else defaults. For a fast target the draft's
    linear layers are packed in place (`models.runtime.linear`). Raises BadInput for an unknown drafter or option or an
    invalid value, Unsupported if the base model cannot verify drafts.
    """
    options = {k: v for k, v in (options or {}).items() if v is not None}
    name = options.pop("drafter", None) or (draft.method if draft is not None else "none")
    if name not in WITHOUT_DRAFT and name not in METHODS:
        raise BadInput(f"Unknown drafter {name!r}; known are {', '.join((*WITHOUT_DRAFT, *METHODS))}.")
    if name not in WITHOUT_DRAFT and (draft is None or draft.method != name):
        raise BadInput(f"Drafter {name!r} needs a checkpoint trained with the method {name!r}.")
    if name != "none":
        require_trees(target)
    allowed_options = WITHOUT_DRAFT[name][0] if name in WITHOUT_DRAFT else METHODS[name].drafting
    if draft is not None and name == draft.method and not (set(options) & set(allowed_options)) - {"sample"}:
        options = {**getattr(draft, "drafting", {}), **options}
    trees.check_options(name, options, allowed_options)
    if name in WITHOUT_DRAFT:
        return WITHOUT_DRAFT[name][1](target, **options)
    return METHODS[name].load("drafter").make(target, draft, options)
