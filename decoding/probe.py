"""Tests whether a base model supports tree attention masks, before a run begins.

Compares the logits of a tree, computed in one forward with the KV cache, with those of transformers' own forward
without a cache, path by path; for a sliding window again, with a window so narrow that the tree crosses its edge. Both
forwards compute in float32 whatever the base model's precision: rounding errors grow with depth (0.16 to 0.31 in
bfloat16 with the starter's 30 layers) and could hide an ignored mask or look like one."""

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch

from decoding.target import Target
from decoding.tree import DraftTree, shape_from_choices
from models.base import LoadedBase
from models.runtime.attention import layer_windows
from models.runtime.precision import in_float32
from models.runtime.transformers import TransformersForward
from speculoos.errors import Unsupported, first_line

SHAPE = shape_from_choices([[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]])
PREFIX_TOKENS = 12  # number of tokens before the tree
NARROW_WINDOW = 6  # sliding window for the second comparison: shorter than the prefix, longer than a branch
TOLERANCE = 2e-3  # largest difference of a likely token's log-probability that rounding in float32 can cause


_passed: WeakSet[LoadedBase] = WeakSet()


def probe(base: LoadedBase) -> float:
    """The largest difference between log-probabilities of a tree and of plain decoding, on random tokens. Raises
    Unsupported if they differ or the family cannot run. Call it before a fast forward moves the weights."""
    worst = _compare(base)
    if any(layer_windows(base.config).values()):
        with with_sliding_window(base, NARROW_WINDOW):
            worst = max(worst, _compare(base))
    return worst


def require_trees(target: Target) -> None:
    """Raise Unsupported if the target cannot verify draft trees: probed once, and not for the tested fast forward."""
    if isinstance(target.forward, TransformersForward) and target.base not in _passed:
        probe(target.base)
        _passed.add(target.base)


@contextmanager
def with_sliding_window(base: LoadedBase, window: int) -> Iterator[None]:
    """Set the model's sliding window to `window` tokens within the block. Mutates and restores `base.config`."""
    original = base.config.sliding_window
    base.config.sliding_window = window
    try:
        yield
    finally:
        base.config.sliding_window = original


def _compare(base: LoadedBase) -> float:
    name = f"{type(base.model).__name__} ({base.path.name})"
    try:
        with in_float32(base.model):
            difference = _difference(base)
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, NotImplementedError) as error:
        raise Unsupported(
            f"{name} does not support speculative decoding: its forward does not accept the KV cache and tree masks "
            f"({first_line(error)})."
        ) from None
    if not difference <= TOLERANCE:  # NaN fails too
        raise Unsupported(
            f"{name} does not support speculative decoding: log-probabilities of a tree differ from those of plain "
            f"decoding by {difference:.3g}, more than the {TOLERANCE:g} that rounding can cause."
        )
    return difference


@torch.inference_mode()
def _difference(base: LoadedBase) -> float:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(base.vocab_size, (PREFIX_TOKENS + len(SHAPE),), generator=generator).tolist()
    prefix, tokens = ids[:PREFIX_TOKENS], ids[PREFIX_TOKENS:]
    target = Target(base, 2 * PREFIX_TOKENS + len(SHAPE), TransformersForward(base))
    target.prefill(prefix)
    tree = target.forward_tree(DraftTree(tuple(tokens), SHAPE)).logits
    differences = []
    for path in ([0, *path] for path in SHAPE.paths):
        input_ids = torch.tensor([[*prefix, *(tokens[node] for node in path)]], device=base.device)
        plain = base.model(input_ids=input_ids, use_cache=False).logits[0, -len(path) :]  # its own mask, no cache
        ours, theirs = tree[path].float().log_softmax(-1), plain.float().log_softmax(-1)
        likely = theirs.topk(min(10, theirs.shape[-1]), dim=-1).indices
        differences.append(float((ours.gather(-1, likely) - theirs.gather(-1, likely)).abs().max()))
    return max(differences)
