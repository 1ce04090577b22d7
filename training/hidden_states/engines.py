"""Serving engines take rows one by one and say which token they chose, by which we know whether their hidden states
are those of our base."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from speculoos.errors import BadInput, Unsupported
from speculoos.settings import StateServer
from training.hidden_states.client import Connection
from training.hidden_states.daemons import Daemons
from training.hidden_states.wire import HiddenStates, StatesRequest, check_given, joined

TRIED, TRIED_TOKENS = 6, 64
WRITTEN_NUMBER = 32
"""Characters of a number in JSON at most, with what parts it from the next."""


class EngineAnswer(NamedTuple):
    """One row: `hidden` [n, H], the head's input; `aux` [n, layers · H]; the token chosen after it, None if unsaid."""

    hidden: Tensor
    aux: Tensor
    token: int | None


def chosen_of(said: Any) -> int | None:
    """The first of the tokens that a server says it chose."""
    return said[0] if isinstance(said, list) and said and type(said[0]) is int else None


class EngineClient:
    """A server that answers one row a request; the subclass knows its words."""

    def __init__(self, server: StateServer, base: Any):
        self.connection, self.base, self.server = Connection(server), base, server
        self.workers = 2
        self._daemons = Daemons(server.concurrency)

    def row(self, ids: list[int], layers: tuple[int, ...]) -> EngineAnswer:
        """Raises as `states`."""
        raise NotImplementedError

    def states(self, asked: StatesRequest) -> HiddenStates:
        begun = [self._daemons.call(self.row, row.tolist(), asked.layers) for row in asked.rows]
        parts = []
        for number, future in enumerate(begun):
            got = future.result()
            hidden = got.hidden if asked.places is None else got.hidden[asked.places[number].long()]
            parts.append(HiddenStates(hidden, got.aux))
        given = joined(parts)
        check_given(given, asked, self.base.hidden_size)
        return given

    def close(self) -> None:
        self._daemons.close()
        self.connection.close()

    def check_tokens(self, rows: Sequence[Tensor], layers: tuple[int, ...] = ()) -> str:
        """What our head makes of its hidden states must be the tokens it chose, near ties aside."""
        tried = [row[:TRIED_TOKENS].tolist() for row in rows[:TRIED]]
        answers = [self.row(ids, layers) for ids in tried]
        told = [(got.hidden[-1], got.token) for got in answers if got.token is not None]
        if not told:
            return "it does not say which tokens it chose, so that it runs this base is not proved"
        last = torch.stack([hidden for hidden, _ in told]).to(self.base.device, self.base.dtype)
        with torch.no_grad():
            ours = self.base.logits(last).argmax(-1).tolist()
        same = sum(mine == token for mine, (_, token) in zip(ours, told, strict=True))
        if same * 2 < len(told):
            raise BadInput(
                f"The server of hidden states “{self.server.name}” chose the token that this base's head makes of its "
                f"hidden states in {same} of {len(told)} rows: it runs another base, or sends other layers.",
                "Serve the base that is trained for, with the layers that docs/training.md names.",
            )
        return f"{same} of {len(told)} tokens it chose are those of this base's head"

    def normed(self, last_layer: Tensor) -> Tensor:
        """The last layer's output [n, H] as the head reads it."""
        norm = self.base.final_norm
        if norm is None:
            raise Unsupported(f"The final norm of {type(self.base.model).__name__} has no known name; train it here.")
        with torch.no_grad():
            return norm(last_layer.to(self.base.device, self.base.dtype))
