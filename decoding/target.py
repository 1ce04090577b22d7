"""The base model as a verifier: prefill a prompt, score a tree in one forward, commit the accepted path.

Owns the base's cache and knows which tokens it holds. Knows neither drafters nor acceptance rules.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from decoding.tree import DraftTree
from models.base import LoadedBase
from models.runtime.cache import KVCache
from models.runtime.forward import fastest
from models.runtime.interface import Forward, Inputs, Scored, Selection
from models.runtime.precision import exact_products
from models.runtime.transformers import TransformersForward
from models.runtime.weights import why_not_fast
from speculoos.errors import BadInput

PREFILL_ROWS = 1024
"""Prompt rows per forward: bounds the memory attention and activations take."""


class Target:
    """One sequence on one base. Not thread-safe: one generation at a time."""

    def __init__(self, base: LoadedBase, max_length: int = 2048, forward: Forward | None = None):
        """`max_length` tokens of prompt and answer, at most what the base was made for."""
        self.base = base
        self.max_length = min(max_length, usable_length(base))
        self.forward = forward or TransformersForward(base)
        self.cache = KVCache(base.num_layers, self.max_length)
        self.notice = ""
        """Why this target is slower than it could be, in one sentence; empty when it is not."""
        self.ids: list[int] = []
        """Tokens whose keys and values are in the cache, in order."""

    @property
    def room(self) -> int:
        """Nodes (root included) that the next tree may have."""
        return self.cache.room

    def prefill(
        self,
        prompt_ids: Sequence[int],
        reusable: int | None = None,
        layers: Sequence[int] = (),
        best_only: bool = False,
    ) -> Scored:
        """Make the cache hold exactly `prompt_ids`; logits [1, V] after the last (or its best token, `best_only`),
        hidden rows of the computed ones.

        Rows of what the cache holds are kept, as `reused` says.
        """
        self._check(prompt_ids)
        self.rewind(self.reused(prompt_ids, reusable))
        rest = prompt_ids[len(self.ids) :]
        parts = [
            self.extend(rest[start : start + PREFILL_ROWS], layers, last_only=True, best_only=best_only)
            for start in range(0, len(rest), PREFILL_ROWS)
        ]
        return _joined(parts)

    def reused(self, prompt_ids: Sequence[int], reusable: int | None = None) -> int:
        """How many tokens of the prompt need not be computed: those of the longest common prefix with what the cache
        holds, at most `reusable` (a drafter that lacks earlier features asks for fewer) and never the last one."""
        shared = min(common_prefix(self.ids, prompt_ids), len(prompt_ids) - 1)
        return shared if reusable is None else min(shared, reusable)

    def extend(
        self, ids: Sequence[int], layers: Sequence[int] = (), last_only: bool = False, best_only: bool = False
    ) -> Scored:
        """Append `ids` to the text, in one forward; logits [n, V] (or [1, V]) or best tokens after them."""
        start = len(self.ids)
        scored = self._run(ids, range(start, start + len(ids)), None, layers, last_only, best_only)
        self.cache.commit(range(len(ids)))
        self.ids += ids
        return scored

    def rewind(self, length: int) -> None:
        """Forget the text from token `length` on."""
        self.cache.crop(length)
        del self.ids[length:]

    def score(self, tree: DraftTree, layers: Sequence[int] = (), best_only: bool = False) -> Scored:
        """Logits [n, V], or best tokens, after every node of `tree`, in one forward. Stages its rows in the cache."""
        start = len(self.ids)
        positions = [start + depth for depth in tree.shape.depths]
        mask = None if len(tree) == 1 else tree.shape.mask.to(self.base.device)
        return self._run(tree.tokens, positions, mask, layers, best_only=best_only)

    def commit(self, tree: DraftTree, nodes: Sequence[int]) -> None:
        """Keep the cache rows of `nodes` (the root and a path below it) of the tree scored last."""
        self.cache.commit(nodes)
        self.ids += [tree.tokens[node] for node in nodes]

    def synchronize(self) -> None:
        """Wait for the device, so that times are those of the work."""
        if self.base.device.type == "cuda":
            torch.cuda.synchronize(self.base.device)

    def _run(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        mask: torch.Tensor | None,
        layers: Sequence[int],
        last_only: bool = False,
        best_only: bool = False,
    ) -> Scored:
        inputs = Inputs.of(ids, positions, self.base.device, mask)
        scored = self.forward(inputs, self.cache, Selection(tuple(layers), last_only, best_only))
        self.cache.stage(len(ids))
        return scored

    def _check(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise BadInput("The prompt has no tokens.")
        if len(prompt_ids) >= self.max_length:
            raise BadInput(
                f"The prompt has {len(prompt_ids)} tokens and this model is set to {self.max_length} with the answer; "
                "shorten the prompt."
            )
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.base.vocab_size:
            raise BadInput(f"The prompt has a token id outside 0…{self.base.vocab_size - 1}.")


def fast_target(base: LoadedBase, max_length: int = 2048) -> Target:
    """A Target on the fastest forward this base has: ours, or transformers' own (then `target.notice` says why).

    The first call takes the base's weights over; further targets of the same base share them.
    """
    exact_products(base.device)
    target = Target(base, max_length, fastest(base))
    if isinstance(target.forward, TransformersForward):
        target.notice = f"Runs on transformers' own forward: {why_not_fast(base)}."
    return target


def usable_length(base: LoadedBase) -> int:
    """Most positions one cache can serve. Rotary scalings that change with length (longrope, dynamic) rescale keys
    that are cached already, so such models are used up to their original length only."""
    scaling = getattr(base.config, "rope_parameters", None) or {}
    if scaling.get("rope_type") in ("longrope", "dynamic"):
        original = getattr(base.config, "original_max_position_embeddings", None)
        original = original or scaling.get("original_max_position_embeddings")
        return min(int(original), base.max_length) if original else base.max_length
    return base.max_length


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _joined(parts: list[Scored]) -> Scored:
    if len(parts) == 1:
        return parts[0]
    features = None if parts[0].features is None else torch.cat([p.features for p in parts])
    return replace(parts[-1], hidden=torch.cat([p.hidden for p in parts]), features=features)
