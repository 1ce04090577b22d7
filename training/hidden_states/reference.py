"""Client of the project's own server (`speculoos features serve`): one request per batch."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from speculoos.errors import BadInput
from speculoos.settings import HiddenStatesServer
from training.hidden_states.client import StatesClient, StatesConnection
from training.hidden_states.wire import MAX_VALUE_BYTES, PROTOCOL, HiddenStates, StatesRequest, check_shapes, from_bytes


class ReferenceClient(StatesClient):
    """Every request names the weights' sha256, so a server restarted with another base model is detected at once.
    While one batch is computed, another is transferred."""

    def __init__(self, server: HiddenStatesServer, base: Any, sha256: str):
        self._connection, self._base, self._sha256 = StatesConnection(server), base, sha256
        self._name = server.name

    def check(self, rows: Sequence[Tensor]) -> str:
        facts = self._connection.get("/v1/base")
        if not isinstance(facts, dict) or facts.get("protocol") != PROTOCOL:
            raise BadInput(f"“{self._name}” is no server of hidden states of this version; check its url.")
        if (served := str(facts.get("base_sha256"))) != self._sha256:
            raise BadInput(
                f"The server of hidden states “{self._name}” runs other weights ({served[:12]}…) than this training's "
                f"base ({self._sha256[:12]}…).",
                "Serve the base model of this training, or choose another server.",
            )
        return f"Hidden states come from “{self._name}”, which runs {facts['name']} in {facts['dtype']}."

    def states(self, request: StatesRequest) -> HiddenStates:
        width = self._base.hidden_size
        max_bytes = request.numbers(width) * MAX_VALUE_BYTES
        answer = self._connection.post("/v1/hidden_states", request.to_json(self._sha256), max_bytes)
        result = from_bytes(answer.content)
        check_shapes(result, request, width)
        return result

    def close(self) -> None:
        self._connection.close()
