"""Base class for clients of serving engines, which process one row per request. The tokens they generate are compared
with those of our base model's head, to verify that the server runs the same model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from speculoos.errors import BadInput, Unsupported
from speculoos.settings import HiddenStatesServer
from training.hidden_states.client import DaemonPool, StatesClient, StatesConnection
from training.hidden_states.wire import HiddenStates, StatesRequest, check_shapes, concat_states

CHECK_ROWS, CHECK_TOKENS = 6, 64
JSON_NUMBER_CHARS = 32
"""Maximum characters of one number in JSON, separator included."""


class EngineAnswer(NamedTuple):
    """One row: `hidden` [n, H], the head's input; `aux` [n, layers · H]; the generated token, None if not reported."""

    hidden: Tensor
    aux: Tensor
    token: int | None


def first_generated_token(token_ids: Any) -> int | None:
    return token_ids[0] if isinstance(token_ids, list) and token_ids and type(token_ids[0]) is int else None


class EngineClient(StatesClient):
    """Client of a server that processes one row per request; subclasses implement its API."""

    def __init__(self, server: HiddenStatesServer, base: Any):
        self.connection, self.base, self.server = StatesConnection(server), base, server
        self._daemons = DaemonPool(server.concurrency)

    def row(self, ids: list[int], layers: tuple[int, ...]) -> EngineAnswer:
        """Hidden states of one row; raises the same errors as `states`."""
        raise NotImplementedError

    def states(self, request: StatesRequest) -> HiddenStates:
        futures = [self._daemons.call(self.row, row.tolist(), request.layers) for row in request.rows]
        parts = []
        for number, future in enumerate(futures):
            answer = future.result()
            hidden = answer.hidden if request.positions is None else answer.hidden[request.positions[number].long()]
            parts.append(HiddenStates(hidden, answer.aux))
        result = concat_states(parts)
        check_shapes(result, request, self.base.hidden_size)
        return result

    def close(self) -> None:
        self._daemons.close()
        self.connection.close()

    def check_tokens(self, rows: Sequence[Tensor], layers: tuple[int, ...] = ()) -> str:
        """Verify that our head, applied to the server's hidden states, gives the tokens the server generated. At least
        half must match, since near ties may differ. Returns a clause for the log; raises BadInput."""
        prompts = [row[:CHECK_TOKENS].tolist() for row in rows[:CHECK_ROWS]]
        answers = [self.row(ids, layers) for ids in prompts]
        chosen = [(answer.hidden[-1], answer.token) for answer in answers if answer.token is not None]
        if not chosen:
            return "it does not report the tokens it chose, so its base model cannot be verified"
        last = torch.stack([hidden for hidden, _ in chosen]).to(self.base.device, self.base.dtype)
        with torch.no_grad():
            ours = self.base.logits(last).argmax(-1).tolist()
        same = sum(our == token for our, (_, token) in zip(ours, chosen, strict=True))
        if same * 2 < len(chosen):
            raise BadInput(
                f"The server of hidden states “{self.server.name}” chose the token that this base's head computes from "
                f"its hidden states in {same} of {len(chosen)} rows: it runs another base, or sends other layers.",
                "Serve the base model of this training, with the layers named in docs/training.md.",
            )
        return f"{same} of {len(chosen)} tokens it chose are those of this base's head"

    def normed(self, last_layer: Tensor) -> Tensor:
        """The final norm of the last layer's output [n, H]: the head's input."""
        norm = self.base.final_norm
        if norm is None:
            raise Unsupported(f"{type(self.base.model).__name__}: its final norm is unknown; train without a server.")
        with torch.no_grad():
            return norm(last_layer.to(self.base.device, self.base.dtype))
