"""Text form of drafting options: `own`, `chain 4`, `tree 4x2x1`, `ngram`, `mtp`, paths as in Medusa, TensorRT-LLM and
vLLM, or JSON.

All methods with a checkpoint support chains and trees; other options (`depth`, `top_k`, `nodes`) depend on the method.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import accumulate, product
from math import prod
from operator import mul
from typing import Any

from speculoos.errors import BadInput

CHECKPOINT_OPTIONS = "own"
"""The tuned options of the checkpoint, or the defaults of its method."""
NGRAM, MTP = "ngram", "mtp"
"""Drafters without a checkpoint: prompt lookup, and the base model's own multi-token prediction layer."""
CHAIN, TREE = re.compile(r"chain[ :]?(\d{1,2})"), re.compile(r"tree[ :]?(\d{1,2}(?:x\d{1,2})*)")
MAX_LEAVES = 256
MAX_TREE_NODES = 1024
"""Maximum nodes of a static tree without the root, all verified in one forward."""
MAX_DEPTH = 32
MAX_OPTION = 1024
"""Largest value of a drafter's numeric option."""
BRACKETS, LAST_COMMA = str.maketrans("()", "[]"), re.compile(r",\s*(?=\])")
"""Convert a list of tuples (vLLM) to JSON."""
MAX_CHARACTERS = 20_000
NOT_SAVED = "The tree was not saved: the draft's drafting options are unchanged."
EXPECTED_FORMS = (
    'expected own, "chain 4", "tree 4x2x1", ngram, mtp, paths such as [[0], [0, 0], [1]], or options, such as '
    '"depth 4, top_k 8, nodes 32"'
)


def parse(text: str) -> dict[str, Any]:
    """Parse to options of `decoding.drafters.make_drafter`. Raises BadInput."""
    text = text.strip()
    if text in ("", CHECKPOINT_OPTIONS):
        return {}
    if len(text) > MAX_CHARACTERS:
        raise BadInput(f"A tree of {len(text):,} characters is longer than the limit of {MAX_CHARACTERS:,}.")
    if text.startswith("["):
        return {"tree": _paths(text)}
    if chain := CHAIN.fullmatch(text):
        return {"tree": _leaves(text, [1] * int(chain[1]) or [0])}
    if tree := TREE.fullmatch(text):
        return {"tree": _leaves(text, [int(width) for width in tree[1].split("x")])}
    return _options(text)


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Drafting options with a `tree` in text form, such as "chain 4", parsed. Raises BadInput."""
    if not isinstance(options.get("tree"), str):
        return dict(options)
    rest = {name: value for name, value in options.items() if name != "tree"}
    parsed = parse(options["tree"])
    if twice := sorted(set(parsed) & set(rest)):
        raise BadInput(f"{twice[0]!r} is set twice, in 'tree' and beside it; keep one of the two.")
    return {**rest, **parsed}


def drafting_text(drafting: Mapping[str, Any]) -> str:
    """Options in text form, up to 200 characters; "" for the checkpoint's own."""
    rest = dict(drafting)
    name = [str(rest.pop("drafter"))] if "drafter" in rest else []
    tree = [_tree_text(rest.pop("tree"))] if "tree" in rest else []
    return ", ".join([*name, *tree, *(f"{key} {json.dumps(value)}" for key, value in sorted(rest.items()))])[:200]


def fits(drafting: Mapping[str, Any], method: str, known: tuple[str, ...]) -> bool:
    """Whether the options suit `method` ("": no draft), whose drafter takes the options `known`."""
    drafter = drafting.get("drafter", method)
    if not method:
        return not drafting or drafter in (NGRAM, MTP, "none")
    return drafter == method and set(drafting) - {"drafter"} <= set(known)


def check_options(drafter: str, options: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise BadInput for an invalid value, or an option that `drafter`, which takes the options `known`, lacks."""
    for option, value in options.items():
        if option not in known:
            raise BadInput(f"Drafter {drafter!r} has no option {option[:60]!r}; it takes {', '.join(known) or 'none'}.")
        if option == "tree":
            check(value)
        elif option != "sample":
            most = MAX_DEPTH if option == "depth" else MAX_OPTION
            if not (isinstance(value, int) and 0 <= value <= most):
                raise BadInput(f"{option}: expected a whole number of at most {most}, got {str(value)[:60]!r}.")
    if "tree" in options and {"depth", "top_k", "nodes"} & set(options):
        raise BadInput("tree: cannot be combined with depth, top_k or nodes; remove one or the others.")


def check(tree: Any) -> None:
    """Raise BadInput for an invalid list of paths, or too many nodes. Cheap for any input."""
    if not isinstance(tree, list | tuple) or not all(map(_is_choice, tree)):
        raise BadInput("tree: expected a list of choices, each one or more ranks from 0, such as [[0], [0, 0], [1]].")
    if deep := next((len(path) for path in tree if len(path) > MAX_DEPTH), 0):
        raise BadInput(f"tree: a path of {deep:,} ranks cannot be drafted; a tree is at most {MAX_DEPTH} deep.")
    ranks = max((max(path) for path in tree), default=0)
    if max(len(tree), ranks + 1) > MAX_TREE_NODES or len(nodes(tree)) > MAX_TREE_NODES:
        raise BadInput(f"tree: more than {MAX_TREE_NODES} nodes or ranks cannot be drafted.")


def _is_choice(path: Any) -> bool:
    return isinstance(path, list | tuple) and bool(path) and all(type(rank) is int and rank >= 0 for rank in path)


def nodes(tree: Any) -> set[tuple[int, ...]]:
    """All nodes of a tree given as paths: the paths and their prefixes, without the root."""
    return {tuple(path[:depth]) for path in tree for depth in range(1, len(path) + 1)}


def _leaves(text: str, widths: list[int]) -> list[list[int]]:
    if len(widths) > MAX_DEPTH:
        raise BadInput(f"{text[:80]}: is {len(widths):,} deep; a tree is at most {MAX_DEPTH}.")
    if not 1 <= (count := prod(widths)) <= MAX_LEAVES:
        raise BadInput(f"{text}: has {count:,} leaves; a tree has 1 to {MAX_LEAVES}.")
    if (count := sum(accumulate(widths, mul))) > MAX_TREE_NODES:
        raise BadInput(f"{text}: has {count:,} nodes; a tree has at most {MAX_TREE_NODES:,}.")
    return [list(path) for path in product(*map(range, widths))]


def _paths(text: str) -> list[list[int]]:
    """Lists as in Medusa and TensorRT-LLM, or tuples as in vLLM: `[(0,), (0, 1)]`."""
    plain = LAST_COMMA.sub("", text.translate(BRACKETS))
    try:
        tree = json.loads(plain)
    except (ValueError, RecursionError):
        raise BadInput(f"Tree {text[:80]!r}: {EXPECTED_FORMS}.") from None
    check(tree)
    if not tree:
        raise BadInput("An empty tree drafts nothing; add at least one path, such as [[0]].")
    return [list(path) for path in tree]


def _options(text: str) -> dict[str, Any]:
    options = _json(text) if text.startswith("{") else _pairs(text)
    if not isinstance(options, dict):
        raise BadInput(f"Tree {text[:80]!r}: {EXPECTED_FORMS}.")
    if "tree" in options:
        check(options["tree"])
    return options


def _pairs(text: str) -> dict[str, Any] | None:
    """`ngram, depth 3` or `depth 4, top_k 8`, as returned by `drafting_text`."""
    options: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition(" ")
        if key in (NGRAM, MTP) and not value:
            options["drafter"] = key
        elif not key.isidentifier() or (read := _json(value)) is None:
            return None
        else:
            options[key] = read
    return options


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _tree_text(tree: Any) -> str:
    """`chain 4`, `tree 4x2x1`, else the number of nodes with a short hash."""
    try:
        leaves = _without_prefixes([tuple(int(rank) for rank in choice) for choice in tree])
        widths = [max(column) + 1 for column in zip(*leaves, strict=True)]
    except (TypeError, ValueError, OverflowError):
        leaves, widths = [], []
    if widths and prod(widths) == len(leaves) and sorted(leaves) == sorted(product(*map(range, widths))):
        return f"chain {len(widths)}" if len(leaves) == 1 else f"tree {'x'.join(map(str, widths))}"
    digest = hashlib.sha256(json.dumps(tree, sort_keys=True).encode()).hexdigest()[:6]
    return f"tree of {len(tree) if isinstance(tree, list | tuple) else '?'} choices ({digest})"


def _without_prefixes(choices: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The choices that are not a prefix of another: Medusa lists every node, others only leaves."""
    prefixes = {choice[:length] for choice in choices for length in range(1, len(choice))}
    return [choice for choice in dict.fromkeys(choices) if choice not in prefixes]


def editable_text(options: Mapping[str, Any]) -> str:
    """Options as text that `parse` accepts: in short form if it is lossless, else as JSON."""
    text = drafting_text(options) or CHECKPOINT_OPTIONS
    try:
        return text if parse(text) == options else json.dumps(dict(options))
    except BadInput:
        return json.dumps(dict(options))
