"""Does this base really take our tree masks? Found out when a model is picked, never in the middle of a run.

Compares logits of a tree scored in one forward through our cache with logits of transformers' own forward without one,
path by path; and again with the sliding window, where there is one, narrowed until the tree lies across its edge. Both
ways compute in float32 whatever the base's precision: rounding grows with depth (0.16 to 0.31 seen in bfloat16 with the
starter's 30 layers) and would hide a mask that is ignored, or pass for one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from decoding.target import Target
from decoding.tree import DraftTree, shape_from_choices
from models.base import LoadedBase
from models.runtime.attention import layer_windows
from models.runtime.precision import in_float32
from models.runtime.transformers import TransformersForward
from speculoos.errors import Unsupported

SHAPE = shape_from_choices([[0, 0, 0, 0], [0, 1, 0], [1, 0], [1, 1]])
TEXT = 12
"""Tokens before the tree."""
NARROW = 6
"""Sliding window while past-the-window masks are probed: shorter than the text, longer than a branch."""
TOLERANCE = 2e-3
"""Largest difference of a likely token's log-probability that rounding in float32 explains."""


@dataclass(frozen=True)
class Probe:
    """The largest difference of log-probabilities found, and whether masks past a sliding window were tried."""

    difference: float
    past_window: bool


def probe(base: LoadedBase, seed: int = 0) -> Probe:
    """Compare tree logits with plain ones on random tokens: two short forwards, no weights changed.

    Raises Unsupported with the difference where they disagree, or with the reason where the family cannot run at all.
    To be called before a fast forward takes the weights over.
    """
    windowed = any(layer_windows(base.config).values())
    worst = _compared(base, seed)
    if windowed:
        with narrowed(base, NARROW):
            worst = max(worst, _compared(base, seed))
    return Probe(worst, windowed)


_passed: WeakKeyDictionary[LoadedBase, Probe] = WeakKeyDictionary()


def require_trees(target: Target) -> None:
    """Raise Unsupported, before a run begins, where the target cannot verify drafts. Probes a base once.

    Our own forward is for families it was tested with and needs no probe.
    """
    if isinstance(target.forward, TransformersForward) and target.base not in _passed:
        _passed[target.base] = probe(target.base)


@contextmanager
def narrowed(base: LoadedBase, window: int) -> Iterator[None]:
    """Give the model a sliding window of `window` tokens while open. Mutates and restores `base.config`."""
    usual = base.config.sliding_window
    base.config.sliding_window = window
    try:
        yield
    finally:
        base.config.sliding_window = usual


def _compared(base: LoadedBase, seed: int) -> float:
    name = f"{type(base.model).__name__} ({base.path.name})"
    try:
        with in_float32(base.model):
            difference = _difference(base, seed)
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, NotImplementedError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{name} cannot be drafted for: it does not take our cache and masks ({reason}).") from None
    if not difference <= TOLERANCE:  # NaN fails too
        raise Unsupported(
            f"{name} cannot be drafted for: its log-probabilities of a tree differ from plain ones by "
            f"{difference:.3g}, more than the {TOLERANCE:g} that rounding explains."
        )
    return difference


def _difference(base: LoadedBase, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(base.vocab_size, (TEXT + len(SHAPE),), generator=generator).tolist()
    text, tokens = ids[:TEXT], ids[TEXT:]
    target = Target(base, 2 * TEXT + len(SHAPE), TransformersForward(base))
    target.prefill(text)
    tree = target.score(DraftTree(tuple(tokens), SHAPE)).logits
    return max(_gap(tree[[0, *path]], _plain(base, text, [tokens[n] for n in (0, *path)])) for path in SHAPE.paths)


@torch.inference_mode()
def _plain(base: LoadedBase, text: list[int], path: list[int]) -> torch.Tensor:
    """Logits [n, V] after each token of `path`, without a cache and with transformers' own mask."""
    ids = torch.tensor([[*text, *path]], device=base.device)
    return base.model(input_ids=ids, use_cache=False).logits[0, -len(path) :]


def _gap(tree: torch.Tensor, plain: torch.Tensor) -> float:
    """Largest difference of log-probability over the ten likeliest tokens of each row."""
    a, b = tree.float().log_softmax(-1), plain.float().log_softmax(-1)
    likely = b.topk(min(10, b.shape[-1]), dim=-1).indices
    return float((a.gather(-1, likely) - b.gather(-1, likely)).abs().max())
