"""Client of the project's own server (`speculoos features serve`): one request per batch."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from speculoos.errors import BadInput
from speculoos.settings import HiddenStatesServer
from training.hidden_states.client import StatesConnection
from training.hidden_states.wire import MAX_VALUE_BYTES, PROTOCOL, HiddenStates, StatesRequest, check_shapes, from_bytes


class ReferenceClient:
    """Every request names the weights' sha256, so a server restarted with another base model is detected at once."""

    workers = 2
    """One batch is computed while the other is transferred."""

    def __init__(self, server: HiddenStatesServer, base: Any, sha256: str):
        self._connection, self._base, self._sha256 = StatesConnection(server), base, sha256

    def check(self, rows: Sequence[Tensor]) -> str:
        facts = self._connection.get("/v1/base")
        base = self._base
        if not isinstance(facts, dict) or facts.get("protocol") != PROTOCOL:
            raise BadInput(f"“{self._connection.name}” is no server of hidden states of this version; check its url.")
        check_facts(facts, self._connection.name, self._sha256, base.vocab_size, base.hidden_size)
        return f"Hidden states come from “{self._connection.name}”, which runs {facts['name']} in {facts['dtype']}."

    def states(self, request: StatesRequest) -> HiddenStates:
        width = self._base.hidden_size
        max_bytes = request.numbers(width) * MAX_VALUE_BYTES
        answer = self._connection.post("/v1/hidden_states", request.to_json(self._sha256), max_bytes)
        result = from_bytes(answer.content)
        check_shapes(result, request, width)
        return result

    def close(self) -> None:
        self._connection.close()


def check_facts(facts: dict[str, Any], name: str, sha256: str, vocab_size: int, hidden_size: int) -> None:
    """Raise BadInput when the response of GET /v1/base describes another base model."""
    for key, unit, expected in (
        ("vocab_size", "tokens", vocab_size),
        ("hidden_size", "numbers a hidden state", hidden_size),
    ):
        if facts.get(key) != expected:
            raise BadInput(
                f"The server of hidden states “{name}” runs another base: {facts.get(key)} {unit}, this training's "
                f"base has {expected}.",
                "Serve the base model of this training, or choose another server.",
            )
    if (served := str(facts.get("base_sha256"))) != sha256:
        raise BadInput(
            f"The server of hidden states “{name}” runs other weights ({served[:12]}…) than this training's base "
            f"({sha256[:12]}…).",
            "Serve the base model of this training, or choose another server.",
        )
