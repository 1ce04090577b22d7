"""Prompt lookup: what followed the last few tokens earlier in this very text is guessed to follow again. No training.

Source: Saxena 2023, prompt lookup decoding; here with an index, so that a step does not search the whole text.
"""

from collections.abc import Sequence

from decoding.drafters.base import Drafter, DrafterStart
from decoding.tree import DraftTree
from models.methods.trees import DEEPEST, MOST_NODES
from models.runtime.interface import Scored
from speculoos.errors import BadInput

LONGEST_NGRAM = 16
"""Tokens of one: every place of the text is kept once for each length."""
SEARCHED = 32
"""Earlier places looked at per n-gram, latest first: keeps a step's cost flat in long texts."""


class NgramDrafter(Drafter):
    """Looks up the last `max_ngram` … `min_ngram` tokens, longest first; `width` different continuations at most."""

    name = "ngram"

    def __init__(self, depth: int = 7, width: int = 1, max_ngram: int = 3, min_ngram: int = 1):
        if width < 1 or not 1 <= min_ngram <= max_ngram:
            raise BadInput("Prompt lookup: width and min_ngram are 1 or more, and max_ngram no less than min_ngram.")
        if max_ngram > LONGEST_NGRAM or depth > DEEPEST or width * depth > MOST_NODES:
            raise BadInput(
                f"Prompt lookup: max_ngram is at most {LONGEST_NGRAM}, depth at most {DEEPEST}, "
                f"and width times depth at most {MOST_NODES:,}."
            )
        self.depth, self.width = depth, width
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.ids: list[int] = []
        self.ends: dict[tuple[int, ...], list[int]] = {}
        """For each n-gram of the text, the indices right after it, oldest first."""

    def prefill(self, opening: DrafterStart) -> None:
        self.ids, self.ends = [], {}
        self._extend([*opening.prompt_ids, opening.token])

    def observe(self, tokens: Sequence[int], scored: Scored, rows: Sequence[int]) -> None:
        self._extend(tokens)

    def propose(self, token: int) -> DraftTree:
        nodes = [token]
        parents = [-1]
        for continuation in self._continuations():
            _merge(nodes, parents, continuation)
        return DraftTree.build(nodes, parents)

    def _continuations(self) -> list[list[int]]:
        """Up to `width` texts of up to `depth` tokens, the likeliest first: longer matches, then later ones."""
        continuations: list[list[int]] = []
        for size in self.sizes:
            for end in reversed(self.ends.get(tuple(self.ids[-size:]), [])[-SEARCHED:]):
                text = self.ids[end : end + self.depth]
                if text and text not in continuations:
                    continuations.append(text)
                if len(continuations) == self.width:
                    return continuations
        return continuations

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.ids.append(token)
            for size in self.sizes:
                if len(self.ids) >= size:
                    self.ends.setdefault(tuple(self.ids[-size:]), []).append(len(self.ids))


def _merge(nodes: list[int], parents: list[int], text: Sequence[int]) -> None:
    """Add `text` below the root, sharing the nodes that are there already. Mutates both lists."""
    node = 0
    for token in text:
        parent = node
        same = (i for i, p in enumerate(parents) if p == parent and nodes[i] == token)
        node = next(same, len(nodes))
        if node == len(nodes):
            nodes.append(token)
            parents.append(parent)
