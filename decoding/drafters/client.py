"""Draft tokens from a client's request: one chain, verified in the first forward after the prefill."""

from collections.abc import Sequence

from decoding.drafters.base import Drafter, DrafterStart
from decoding.tree import DraftTree
from models.runtime.interface import ForwardOutput


class ClientDrafter(Drafter):
    """Proposes `tokens` once, as one chain, and then delegates to `inner`.

    The prefill emits the first token of the response, so the chain is proposed only if this token is tokens[0].
    """

    def __init__(self, inner: Drafter, tokens: Sequence[int]):
        self.inner, self.tokens = inner, tuple(tokens)
        self.name = "client" if inner.name == "none" else inner.name
        self.layers = inner.layers
        self._chain: tuple[int, ...] = ()

    def reusable(self, prompt_ids: Sequence[int]) -> int | None:
        return self.inner.reusable(prompt_ids)

    def prefill(self, start: DrafterStart) -> None:
        self._chain = self.tokens[1:] if self.tokens[:1] == (start.token,) else ()
        self.inner.prefill(start)

    def propose(self, token: int) -> DraftTree:
        if self._chain:
            chain, self._chain = self._chain, ()
            return DraftTree.chain((token, *chain))
        self.kind = self.inner.kind
        return self.inner.propose(token)

    def observe(self, tokens: Sequence[int], scored: ForwardOutput, rows: Sequence[int]) -> None:
        self.inner.observe(tokens, scored, rows)
