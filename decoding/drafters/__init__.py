"""All drafters, by name, and what can be set about each."""

from collections.abc import Callable, Sequence
from typing import Any

from decoding.drafters.base import Drafter
from decoding.drafters.eagle import REFERENCE, SMALL, DynamicTree, EagleDrafter
from decoding.drafters.medusa import MedusaDrafter
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.plain import PlainDrafter
from decoding.drafters.standalone import StandaloneDrafter
from decoding.eagle_runner import ModuleRunner, packed_runner
from decoding.probe import require_trees
from decoding.target import Target, fast_target
from decoding.tree import TreeShape, chain_shape, shape_from_choices
from runtime.forward import FastForward
from runtime.linear import pack_module
from speculoos.errors import BadInput, Unsupported


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
    if name not in MAKERS:
        raise BadInput(f"Unknown drafter {name!r}; known are {', '.join(MAKERS)}.")
    if name not in ("none", "ngram") and (draft is None or draft.method != name):
        raise BadInput(f"Drafter {name!r} needs a checkpoint trained with the method {name!r}.")
    if name != "none":
        require_trees(target)
    known, make = MAKERS[name]
    if draft is not None and name == draft.method and not (set(options) & set(known)) - {"sample"}:
        options = {**getattr(draft, "drafting", {}), **options}
    _check(name, options, known)
    if _is_fast(target) and name == "medusa":
        pack_module(draft)
    return make(target, draft, options)


def _check(name: str, options: dict[str, Any], known: tuple[str, ...]) -> None:
    for option, value in options.items():
        if option not in known:
            raise BadInput(f"Drafter {name!r} has no option {option!r}; it takes {', '.join(known) or 'none'}.")
        if option == "tree":
            _check_tree(value)
        elif option != "sample" and not (isinstance(value, int) and 0 <= value <= LARGEST):
            raise BadInput(f"{option}: expected a whole number of at most {LARGEST}, got {value!r}.")
    if "tree" in options and {"depth", "top_k", "nodes"} & set(options):
        raise BadInput("tree: a static tree leaves no room for depth, top_k and nodes; give one or the others.")


def _check_tree(choices: Any) -> None:
    if not isinstance(choices, list | tuple) or not all(isinstance(c, list | tuple) for c in choices):
        raise BadInput("tree: expected a list of choices, such as [[0], [0, 0], [1]].")
    if any(rank > LARGEST for choice in choices for rank in choice if isinstance(rank, int)) or len(choices) > LARGEST:
        raise BadInput(f"tree: more than {LARGEST} choices or ranks cannot be drafted.")


def _check_columns(ranks: Sequence[int], columns: int) -> None:
    if max(ranks, default=0) >= columns:
        raise BadInput(
            f"The tree asks for the {max(ranks) + 1} best tokens and this draft knows {columns}; use a narrower one."
        )


def _is_fast(target: Target) -> bool:
    return isinstance(target.forward, FastForward)


def _plain(target: Target, draft: Any, options: dict[str, Any]) -> Drafter:
    return PlainDrafter()


def _ngram(target: Target, draft: Any, options: dict[str, Any]) -> Drafter:
    return NgramDrafter(**options)


def _medusa(target: Target, draft: Any, options: dict[str, Any]) -> Drafter:
    made = MedusaDrafter(draft, options.get("tree"))
    _check_columns(made.shape.ranks, len(draft.draft_ids))
    return made


def _eagle(target: Target, draft: Any, options: dict[str, Any]) -> Drafter:
    sample = bool(options.pop("sample", False))
    if "tree" in options:
        tree = shape_from_choices(options["tree"])
    else:
        usual = REFERENCE if target.base.device.type == "cuda" else SMALL
        tree = DynamicTree(**{"depth": usual.depth, "top_k": usual.top_k, "nodes": usual.nodes} | options)
    columns = draft.config.draft_vocab_size if draft.method == "eagle3" else target.base.vocab_size
    _check_columns(tree.ranks if isinstance(tree, TreeShape) else [tree.top_k - 1], columns)
    if not _is_fast(target) and draft.runner is not None:
        raise Unsupported("This draft was packed for a fast target; load it again to use it beside another one.")
    runner = packed_runner(draft) if _is_fast(target) else ModuleRunner(draft)
    return EagleDrafter(runner, tree, target.base.vocab_size, sample)


def _standalone(target: Target, draft: Any, options: dict[str, Any]) -> Drafter:
    shape = shape_from_choices(options["tree"]) if "tree" in options else chain_shape(options.get("depth", 4))
    own = (fast_target if _is_fast(target) else Target)(draft.as_base(target.base), target.max_length)
    return StandaloneDrafter(own, shape, target.base.vocab_size, bool(options.get("sample", True)))


LARGEST = 1024
MAKERS: dict[str, tuple[tuple[str, ...], Callable[..., Drafter]]] = {
    "none": ((), _plain),
    "ngram": (("depth", "width", "max_ngram", "min_ngram"), _ngram),
    "medusa": (("tree",), _medusa),
    "eagle": (("tree", "depth", "top_k", "nodes", "sample"), _eagle),
    "eagle3": (("tree", "depth", "top_k", "nodes", "sample"), _eagle),
    "draft": (("depth", "tree", "sample"), _standalone),
}
