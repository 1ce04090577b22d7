"""From the settings of a training to whoever brings its hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.frame import Frame
from models.methods.settings import STORED, TrainConfig
from speculoos.errors import BadInput
from speculoos.settings import StateServer
from training.batches import Batch, TokenisedConversation
from training.hidden_states.carrier import CarrierWatch, Direct, Threaded
from training.hidden_states.client import Client
from training.hidden_states.kept import KeptStates
from training.hidden_states.reference import ReferenceClient
from training.hidden_states.sglang import SglangClient
from training.hidden_states.stored import StoredStates
from training.hidden_states.vllm import VllmClient
from training.hidden_states.wire import HiddenStates, StatesRequest, computed
from training.source import Carrier, LocalSource, RemoteSource, States, StatesSource, StatesWanted, asked_of, spread


@dataclass(frozen=True)
class Elsewhere:
    """What the names `hidden_states` and `hidden_states_store` of a training stand for."""

    server: StateServer | None = None
    folder: Path | None = None


class Here:
    """The base in this process, as a client of itself: what the store asks."""

    workers = 1

    def __init__(self, base: Any):
        self._base = base

    def check(self, rows: Sequence[Tensor]) -> str:
        return ""

    def states(self, asked: StatesRequest) -> HiddenStates:
        return computed(self._base, asked)

    def close(self) -> None:
        pass


def connected(
    config: TrainConfig,
    elsewhere: Elsewhere | None,
    base: Any,
    sha256: str,
    conversations: Sequence[TokenisedConversation],
    watch: CarrierWatch,
) -> Carrier | None:
    """Who brings hidden states, checked, and told to the base's frame; None where the base is simply here.

    Waits for a server that is away. Raises BadInput for a server of another base, Cancelled.
    """
    if not (config.hidden_states or config.hidden_states_store):
        return None
    elsewhere = elsewhere or Elsewhere()
    client = _client(config, elsewhere, base, sha256)
    if not isinstance(base, Frame):
        return Direct(client)
    carrier = Threaded(client, watch)
    rows = [conversation.token_ids for conversation in conversations]
    watch.reporter.log(carrier.result(carrier.call(lambda: client.check(rows))))
    base.ask = asker(base, carrier)
    return carrier


def _client(config: TrainConfig, elsewhere: Elsewhere, base: Any, sha256: str) -> Client:
    client = _server(config, elsewhere, base, sha256) if isinstance(base, Frame) else Here(base)
    if not config.hidden_states_store:
        assert client is not None
        return client
    if elsewhere.folder is None:
        raise BadInput("hidden_states_store: no folder was given for it.")
    return StoredStates(KeptStates(elsewhere.folder, sha256, base.dtype, base.hidden_size), client)


def _server(config: TrainConfig, elsewhere: Elsewhere, base: Any, sha256: str) -> Client | None:
    """None for the store alone."""
    if config.hidden_states == STORED:
        return None
    if elsewhere.server is None:
        raise BadInput(f"hidden_states: nothing is known of a server named “{config.hidden_states}”.")
    if elsewhere.server.kind == "speculoos":
        return ReferenceClient(elsewhere.server, base, sha256)
    return {"vllm": VllmClient, "sglang": SglangClient}[elsewhere.server.kind](elsewhere.server, base)


def source_of(config: TrainConfig, method: Any, base: Any, carrier: Carrier | None) -> StatesSource:
    """What a stream of batches asks."""
    if carrier is None:
        return LocalSource(method)
    return RemoteSource(method, base, carrier, config.hidden_states_ahead if isinstance(base, Frame) else 0)


def asker(base: Frame, carrier: Carrier) -> Any:
    """How a frame asks for the hidden states of whole rows."""

    def ask(input_ids: Tensor, lengths: Tensor | None, layers: Sequence[int]) -> States:
        if lengths is None:
            lengths = torch.full((len(input_ids),), input_ids.shape[1], device=input_ids.device)
        batch, wanted = (
            Batch(input_ids, torch.ones_like(input_ids, dtype=torch.bool), lengths),
            StatesWanted(tuple(layers)),
        )
        hidden, aux = spread(carrier.result(carrier.begin(asked_of(batch, wanted))), batch, wanted, base)
        return hidden, tuple(aux[0].split(base.hidden_size, -1)) if aux else ()

    return ask
