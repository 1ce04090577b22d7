"""Prompt lookup: proposes the tokens that followed an earlier occurrence of the last n tokens. No training.

Source: Saxena 2023, prompt lookup decoding; with an index, so that a step does not search the whole sequence.
"""

from collections.abc import Sequence

from decoding.drafters.base import Drafter, PrefillContext
from decoding.tree import DraftTree
from models.methods.trees import MAX_DEPTH, MAX_TREE_NODES
from models.runtime.interface import ForwardOutput
from speculoos.errors import BadInput

MAX_NGRAM = 16  # largest n: the index stores every position of the sequence once for each n
MAX_OCCURRENCES = 32  # occurrences tried per n-gram, latest first; limits the cost of a step in long texts


class NgramDrafter(Drafter):
    """Looks up the last `max_ngram` … `min_ngram` tokens, longest first; proposes at most `width` continuations."""

    name = "ngram"

    def __init__(self, depth: int = 7, width: int = 1, max_ngram: int = 3, min_ngram: int = 1):
        sizes_fit = 1 <= min_ngram <= max_ngram <= MAX_NGRAM
        if width < 1 or not sizes_fit or depth > MAX_DEPTH or width * depth > MAX_TREE_NODES:
            raise BadInput(
                "Prompt lookup: width must be 1 or more, min_ngram and max_ngram ascending numbers from 1 to "
                f"{MAX_NGRAM}, depth at most {MAX_DEPTH}, and width times depth at most {MAX_TREE_NODES:,}."
            )
        self.depth, self.width = depth, width
        self.sizes = range(max_ngram, min_ngram - 1, -1)
        self.ids: list[int] = []
        self.ends: dict[tuple[int, ...], list[int]] = {}
        """For each n-gram of the sequence, the indices after its occurrences, oldest first."""

    def prefill(self, start: PrefillContext) -> None:
        self.ids, self.ends = [], {}
        self._extend([*start.prompt_ids, start.token])

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self._extend(tokens)

    def propose(self, token: int) -> DraftTree:
        nodes, parents = [token], [-1]
        for continuation in self._continuations():
            node = 0
            for next_token in continuation:  # continuations share existing nodes
                same = (i for i, parent in enumerate(parents) if parent == node and nodes[i] == next_token)
                child = next(same, len(nodes))
                if child == len(nodes):
                    nodes.append(next_token)
                    parents.append(node)
                node = child
        return DraftTree.build(nodes, parents)

    def _continuations(self) -> list[list[int]]:
        """Up to `width` continuations of up to `depth` tokens: those of longer matches first, then later ones."""
        continuations: list[list[int]] = []
        for size in self.sizes:
            for end in reversed(self.ends.get(tuple(self.ids[-size:]), [])[-MAX_OCCURRENCES:]):
                continuation = self.ids[end : end + self.depth]
                if continuation and continuation not in continuations:
                    continuations.append(continuation)
                if len(continuations) == self.width:
                    return continuations
        return continuations

    def _extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.ids.append(token)
            for size in self.sizes:
                if len(self.ids) >= size:
                    self.ends.setdefault(tuple(self.ids[-size:]), []).append(len(self.ids))
