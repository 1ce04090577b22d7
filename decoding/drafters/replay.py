"""Recorded tokens as drafts: a drafter that costs nothing and is right as often as its recording is.

For measuring what the loop itself costs, and for tests with drafts that are always, sometimes or never right.
"""

from collections.abc import Sequence

from decoding.drafters.base import Drafter, DrafterStart
from decoding.tree import DraftTree, TreeShape, chain_shape
from models.runtime.interface import Scored


class ReplayDrafter(Drafter):
    """Puts the recording on one path of a static shape, by turns on each, and wrong tokens everywhere else."""

    name = "replay"

    def __init__(self, recorded: Sequence[int], shape: TreeShape | int, vocab_size: int):
        """`recorded` are the new tokens of an earlier generation; `shape` a tree, or the depth of a chain."""
        self.recorded, self.vocab_size = list(recorded), vocab_size
        self.shape = chain_shape(shape) if isinstance(shape, int) else shape

    def prefill(self, opening: DrafterStart) -> None:
        self.done, self.turn = 1, 0

    def observe(self, tokens: Sequence[int], scored: Scored, rows: Sequence[int]) -> None:
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
        """A token other than the recorded one at this depth, different for each rank."""
        at = self.done + depth - 1
        truth = self.recorded[at] if at < len(self.recorded) else 0
        return (truth + 1 + rank) % self.vocab_size
