"""The base model as a verifier: prefill a prompt, verify a tree in one forward, commit the accepted path.

A target owns the base model's KV cache and the list of its tokens. It is independent of drafters and acceptance rules.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from decoding.tree import DraftTree
from models.base import LoadedBase
from models.runtime.cache import KVCache, upload
from models.runtime.forward import fastest_forward
from models.runtime.interface import Forward, ForwardOutput, Inputs, Selection
from models.runtime.precision import disable_tf32
from models.runtime.transformers import TransformersForward
from models.runtime.weights import not_fast_reason
from speculoos.errors import BadInput

MAX_PREFILL_TOKENS = 1024  # prompt tokens per forward; limits the memory of attention and activations


class Target:
    """One sequence on one base model. Not thread-safe: one generation at a time."""

    def __init__(self, base: LoadedBase, max_length: int = 2048, forward: Forward | None = None):
        """`max_length`: largest number of tokens of prompt and response; reduced to the base model's limit."""
        self.base = base
        self.max_length = min(max_length, usable_length(base))
        self.forward = forward or TransformersForward(base)
        self.cache = KVCache(base.num_layers, self.max_length, layer_devices=base.layer_devices)
        self.notice = ""  # one sentence why this target is slower than possible, or ""
        self.ids: list[int] = []  # token ids in the cache, in order

    @property
    def free_positions(self) -> int:
        """Largest number of nodes, including the root, of the next tree."""
        return self.cache.free_rows

    def prefill(
        self,
        prompt_ids: Sequence[int],
        reusable: int | None = None,
        layers: Sequence[int] = (),
        argmax_only: bool = False,
    ) -> ForwardOutput:
        """Fill the cache with exactly `prompt_ids`. Returns logits [1, V] after the last token (or the best token, with
        `argmax_only`) and the hidden states of the computed tokens. Cached tokens are reused, see `reused`."""
        self._check(prompt_ids)
        self.rewind(self.reused(prompt_ids, reusable))
        rest = prompt_ids[len(self.ids) :]
        parts = [
            self.extend(rest[start : start + MAX_PREFILL_TOKENS], layers, last_only=True, argmax_only=argmax_only)
            for start in range(0, len(rest), MAX_PREFILL_TOKENS)
        ]
        if len(parts) == 1:
            return parts[0]
        features = None if parts[0].features is None else torch.cat([p.features for p in parts])
        return replace(parts[-1], hidden=torch.cat([p.hidden for p in parts]), features=features)

    def reused(self, prompt_ids: Sequence[int], reusable: int | None = None) -> int:
        """Number of prompt tokens reused from the cache: the common prefix, at most `reusable`, never the last."""
        shared = min(common_prefix(self.ids, prompt_ids), len(prompt_ids) - 1)
        return shared if reusable is None else min(shared, reusable)

    def extend(
        self, ids: Sequence[int], layers: Sequence[int] = (), last_only: bool = False, argmax_only: bool = False
    ) -> ForwardOutput:
        """Append `ids` to the sequence in one forward. Returns logits [n, V] (or [1, V]), or best tokens."""
        start = len(self.ids)
        output = self._run(ids, range(start, start + len(ids)), None, layers, last_only, argmax_only)
        self.cache.commit(range(len(ids)))
        self.ids += ids
        return output

    def rewind(self, length: int) -> None:
        """Truncate the sequence to `length` tokens."""
        self.cache.crop(length)
        del self.ids[length:]

    def forward_tree(self, tree: DraftTree, layers: Sequence[int] = (), argmax_only: bool = False) -> ForwardOutput:
        """Logits [n, V], or best tokens, after every node of `tree`, in one forward that stages its cache rows."""
        start = len(self.ids)
        positions = [start + depth for depth in tree.shape.depths]
        mask = None if len(tree) == 1 else upload(tree.shape.mask, self.base.device)
        return self._run(tree.tokens, positions, mask, layers, argmax_only=argmax_only)

    def commit(self, tree: DraftTree, nodes: Sequence[int]) -> None:
        """Commit the cache rows of `nodes` (the root and a path below it) of the last tree of `forward_tree`."""
        self.cache.commit(nodes)
        self.ids += [tree.tokens[node] for node in nodes]

    def synchronize(self) -> None:
        """Wait for the device, for correct timing."""
        if self.base.device.type == "cuda":
            torch.cuda.synchronize(self.base.device)

    def _run(
        self,
        ids: Sequence[int],
        positions: Sequence[int],
        mask: torch.Tensor | None,
        layers: Sequence[int],
        last_only: bool = False,
        argmax_only: bool = False,
    ) -> ForwardOutput:
        inputs = Inputs.of(ids, positions, self.base.device, mask)
        output = self.forward(inputs, self.cache, Selection(tuple(layers), last_only, argmax_only))
        self.cache.stage(len(ids))
        return output

    def _check(self, prompt_ids: Sequence[int]) -> None:
        if not prompt_ids:
            raise BadInput("The prompt has no tokens.")
        if len(prompt_ids) >= self.max_length:
            raise BadInput(
                f"The prompt has {len(prompt_ids)} tokens, but prompt and response together may have at most "
                f"{self.max_length}; shorten the prompt."
            )
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.base.vocab_size:
            raise BadInput(f"The prompt has a token id outside 0…{self.base.vocab_size - 1}.")


def fast_target(base: LoadedBase, max_length: int = 2048) -> Target:
    """A Target on the base model's fastest forward, shared by its later targets; `target.notice` says why it is only
    transformers' own. The first call moves the base model's weights."""
    disable_tf32(base.device)
    target = Target(base, max_length, fastest_forward(base))
    if isinstance(target.forward, TransformersForward):
        target.notice = f"Runs on transformers' own forward: {not_fast_reason(base)}."
    return target


def usable_length(base: LoadedBase) -> int:
    """Largest number of positions in one cache. Rotary scalings that depend on the length (longrope, dynamic) would
    rescale cached keys, so these models are limited to their original length."""
    scaling = getattr(base.config, "rope_parameters", None) or {}
    if scaling.get("rope_type") in ("longrope", "dynamic"):
        original = getattr(base.config, "original_max_position_embeddings", None)
        original = original or scaling.get("original_max_position_embeddings")
        return min(int(original), base.max_length) if original else base.max_length
    return base.max_length


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
