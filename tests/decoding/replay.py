"""A drafter that proposes recorded tokens at no cost.

Used to measure the overhead of the loop, and in tests with drafts that are always, sometimes or never accepted.
"""

from collections.abc import Sequence

from decoding.drafters.base import Drafter, PrefillContext
from decoding.tree import DraftTree, TreeShape, chain_shape
from models.runtime.interface import ForwardOutput


class ReplayDrafter(Drafter):
    """Puts the recorded tokens on one path of a static shape, alternating between paths, and wrong tokens on all other
    nodes."""

    name = "replay"

    def __init__(self, recorded: Sequence[int], shape: TreeShape | int, vocab_size: int):
        """`recorded`: the new tokens of an earlier generation. `shape`: a tree, or the depth of a chain."""
        self.recorded, self.vocab_size = list(recorded), vocab_size
        self.shape = chain_shape(shape) if isinstance(shape, int) else shape

    def prefill(self, start: PrefillContext) -> None:
        self.done, self.turn = 1, 0

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.done += len(tokens)

    def propose(self, token: int) -> DraftTree:
        paths = self.shape.paths
        path = paths[self.turn % len(paths)]
        self.turn += 1
        right = dict(zip(path, self.recorded[self.done :], strict=False))
        tokens = [token]
        for node, (depth, rank) in enumerate(zip(self.shape.depths, self.shape.ranks, strict=True)):
            if node:
                tokens.append(right.get(node, self._wrong(depth, rank)))
        return DraftTree(tuple(tokens), self.shape)

    def _wrong(self, depth: int, rank: int) -> int:
        """A token that is not the recorded one at this depth, different for each rank."""
        index = self.done + depth - 1
        recorded = self.recorded[index] if index < len(self.recorded) else 0
        return (recorded + 1 + rank) % self.vocab_size
