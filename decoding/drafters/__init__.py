"""All drafters by name: those without a draft, and one for each method, with the options of each."""

from typing import Any

from decoding.drafters.base import Drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.parts import LARGEST
from decoding.drafters.plain import PlainDrafter
from decoding.probe import require_trees
from decoding.target import Target
from models.methods import METHODS, trees
from speculoos.errors import BadInput

WITHOUT_DRAFT: dict[str, tuple[tuple[str, ...], Any]] = {
    "none": ((), PlainDrafter),
    "ngram": (("depth", "width", "max_ngram", "min_ngram"), NgramDrafter),
}
"""Drafters that need no checkpoint: their options and their class."""


def make_drafter(target: Target, draft: Any = None, options: dict[str, Any] | None = None) -> Drafter:
    """The drafter for `draft` (what models.checkpoints.load_draft gives), or for none.

    options["drafter"]: none, ngram, or the draft's own method; left out it is the draft's method, else none.
    Further options by drafter:

    - ngram: `depth`, `width`, `max_ngram`, `min_ngram`
    - medusa: `tree` (Medusa choices: a list of ranks for each node or for each leaf)
    - eagle, eagle3: `tree` (a static tree), or `depth`, `top_k`, `nodes` (EAGLE-2's dynamic tree; top_k 1 is a
      chain); `sample` (draw the children of a static tree when the generation samples)
    - draft: `depth` (a chain) or `tree`; `sample` (default true)

    Without any of these the ones kept with the checkpoint (its tuned tree) count, else defaults.
    Beside a fast target the draft's own linear layers are packed, in place. Raises BadInput for an unknown drafter or
    option, or a value of the wrong kind; Unsupported where the base cannot verify drafts.
    """
    options = {k: v for k, v in (options or {}).items() if v is not None}
    name = options.pop("drafter", None) or (draft.method if draft is not None else "none")
    if name not in WITHOUT_DRAFT and name not in METHODS:
        raise BadInput(f"Unknown drafter {name!r}; known are {', '.join((*WITHOUT_DRAFT, *METHODS))}.")
    if name not in WITHOUT_DRAFT and (draft is None or draft.method != name):
        raise BadInput(f"Drafter {name!r} needs a checkpoint trained with the method {name!r}.")
    if name != "none":
        require_trees(target)
    known = WITHOUT_DRAFT[name][0] if name in WITHOUT_DRAFT else METHODS[name].drafting
    if draft is not None and name == draft.method and not (set(options) & set(known)) - {"sample"}:
        options = {**getattr(draft, "drafting", {}), **options}
    _check(name, options, known)
    if name in WITHOUT_DRAFT:
        return WITHOUT_DRAFT[name][1](**options)
    return METHODS[name].load("drafter").make(target, draft, options)


def _check(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option, value in options.items():
        if option not in known:
            raise BadInput(f"Drafter {name!r} has no option {option!r}; it takes {', '.join(known) or 'none'}.")
        if option == "tree":
            trees.check(value)
        elif option != "sample" and not (isinstance(value, int) and 0 <= value <= LARGEST):
            raise BadInput(f"{option}: expected a whole number of at most {LARGEST}, got {value!r}.")
    if "tree" in options and {"depth", "top_k", "nodes"} & set(options):
        raise BadInput("tree: a static tree leaves no room for depth, top_k and nodes; give one or the others.")
