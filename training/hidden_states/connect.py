"""Select and connect the source of hidden states from the settings of a training."""

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
    """The server and the folder that the settings `hidden_states` and `hidden_states_store` refer to."""

    server: StateServer | None = None
    folder: Path | None = None


class LocalClient:
    """Client for a base model in this process; the store requests missing rows from it."""

    workers = 1

    def __init__(self, base: Any):
        self._base = base

    def check(self, rows: Sequence[Tensor]) -> str:
        return ""

    def states(self, request: StatesRequest) -> HiddenStates:
        return computed(self._base, request)

    def close(self) -> None:
        pass


def connected(
    config: TrainConfig,
    location: Elsewhere | None,
    base: Any,
    sha256: str,
    conversations: Sequence[TokenisedConversation],
    watch: CarrierWatch,
) -> Carrier | None:
    """Connect and check the source of hidden states, and register it with a base without layers. None when the base
    model runs in this process and no store is used.

    Waits for an unavailable server. Raises BadInput for a server of another base model, Cancelled.
    """
    if not (config.hidden_states or config.hidden_states_store):
        return None
    location = location or Elsewhere()
    client = _client(config, location, base, sha256)
    if not isinstance(base, Frame):
        return Direct(client)
    prefetcher = Threaded(client, watch)
    rows = [conversation.token_ids for conversation in conversations]
    watch.reporter.log(prefetcher.result(prefetcher.call(lambda: client.check(rows))))
    base.ask = make_ask(base, prefetcher)
    return prefetcher


def _client(config: TrainConfig, location: Elsewhere, base: Any, sha256: str) -> Client:
    client = _server(config, location, base, sha256) if isinstance(base, Frame) else LocalClient(base)
    if not config.hidden_states_store:
        assert client is not None
        return client
    if location.folder is None:
        raise BadInput("hidden_states_store: it has no folder.")
    return StoredStates(KeptStates(location.folder, sha256, base.dtype, base.hidden_size), client)


def _server(config: TrainConfig, location: Elsewhere, base: Any, sha256: str) -> Client | None:
    """The server's client; None when only the store is used."""
    if config.hidden_states == STORED:
        return None
    if location.server is None:
        raise BadInput(f"hidden_states: there is no server named “{config.hidden_states}” in settings.toml.")
    if location.server.kind == "speculoos":
        return ReferenceClient(location.server, base, sha256)
    return {"vllm": VllmClient, "sglang": SglangClient}[location.server.kind](location.server, base)


def source_of(config: TrainConfig, method: Any, base: Any, prefetcher: Carrier | None) -> StatesSource:
    """The source of hidden states for a stream of batches."""
    if prefetcher is None:
        return LocalSource(method)
    return RemoteSource(method, base, prefetcher, config.hidden_states_ahead if isinstance(base, Frame) else 0)


def make_ask(base: Frame, prefetcher: Carrier) -> Any:
    """A function that requests hidden states of whole rows, for `base.ask`."""

    def ask(input_ids: Tensor, lengths: Tensor | None, layers: Sequence[int]) -> States:
        if lengths is None:
            lengths = torch.full((len(input_ids),), input_ids.shape[1], device=input_ids.device)
        batch = Batch(input_ids, torch.ones_like(input_ids, dtype=torch.bool), lengths)
        wanted = StatesWanted(tuple(layers))
        hidden, aux = spread(prefetcher.result(prefetcher.begin(asked_of(batch, wanted))), batch, wanted, base)
        return hidden, tuple(aux[0].split(base.hidden_size, -1)) if aux else ()

    return ask
