"""Select and connect the source of hidden states from the settings of a training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.frame import HeadOnlyBase
from models.methods.settings import FROM_STORE, TrainConfig
from speculoos.errors import BadInput
from speculoos.settings import HiddenStatesServer
from training.batches import Batch, TokenisedConversation
from training.hidden_states.client import StatesClient
from training.hidden_states.prefetcher import (
    LocalPrefetcher,
    ServerWaitMonitor,
    StatesPrefetcher,
    ThreadedPrefetcher,
)
from training.hidden_states.reference import ReferenceClient
from training.hidden_states.sglang import SglangClient
from training.hidden_states.states_store import StatesStore, StoredStates
from training.hidden_states.vllm import VllmClient
from training.hidden_states.wire import HiddenStates, StatesRequest, compute_states
from training.source import (
    LocalSource,
    RemoteSource,
    RequiredStates,
    States,
    make_states_request,
    pad_states,
)


@dataclass(frozen=True)
class StatesLocation:
    """The server and the folder that the settings `hidden_states` and `hidden_states_store` refer to."""

    server: HiddenStatesServer | None = None
    folder: Path | None = None


class LocalClient(StatesClient):
    """Client for a base model in this process; the store requests missing rows from it."""

    def __init__(self, base: Any):
        self._base = base

    def states(self, request: StatesRequest) -> HiddenStates:
        return compute_states(self._base, request)


def connect_prefetcher(
    config: TrainConfig,
    location: StatesLocation | None,
    base: Any,
    sha256: str,
    conversations: Sequence[TokenisedConversation],
    watch: ServerWaitMonitor,
) -> StatesPrefetcher | None:
    """Connect and check the source of hidden states, and register it with a base without layers. None when the base
    model runs in this process and no store is used.

    Waits for an unavailable server. Raises BadInput for a server of another base model, Cancelled.
    """
    if not (config.hidden_states or config.hidden_states_store):
        return None
    location = location or StatesLocation()
    local = not isinstance(base, HeadOnlyBase)
    client = LocalClient(base) if local else _server(config, location.server, base, sha256)
    if config.hidden_states_store:
        if location.folder is None:
            raise BadInput("hidden_states_store: it has no folder.")
        client = StoredStates(StatesStore(location.folder, sha256, base.dtype, base.hidden_size), client)
    if local:
        return LocalPrefetcher(client)
    prefetcher = ThreadedPrefetcher(client, watch)
    rows = [conversation.token_ids for conversation in conversations]
    watch.reporter.log(prefetcher.result(prefetcher.call(lambda: client.check(rows))))
    base.compute_hidden = hidden_states_function(base, prefetcher)
    return prefetcher


def _server(config: TrainConfig, server: HiddenStatesServer | None, base: Any, sha256: str) -> StatesClient | None:
    """The server's client; None when only the store is used."""
    if config.hidden_states == FROM_STORE:
        return None
    if server is None:
        raise BadInput(f"hidden_states: there is no server named “{config.hidden_states}” in settings.toml.")
    if server.kind == "speculoos":
        return ReferenceClient(server, base, sha256)
    return {"vllm": VllmClient, "sglang": SglangClient}[server.kind](server, base)


def make_states_source(
    config: TrainConfig, method: Any, base: Any, prefetcher: StatesPrefetcher | None
) -> LocalSource | RemoteSource:
    """The source of hidden states for a stream of batches."""
    if prefetcher is None:
        return LocalSource(method)
    return RemoteSource(method, base, prefetcher, config.hidden_states_ahead if isinstance(base, HeadOnlyBase) else 0)


def hidden_states_function(base: HeadOnlyBase, prefetcher: StatesPrefetcher) -> Any:
    """A function that requests hidden states of whole rows, for `base.compute_hidden`."""

    def compute(input_ids: Tensor, lengths: Tensor | None, layers: Sequence[int]) -> States:
        if lengths is None:
            lengths = torch.full((len(input_ids),), input_ids.shape[1], device=input_ids.device)
        batch = Batch(input_ids, torch.ones_like(input_ids, dtype=torch.bool), lengths)
        wanted = RequiredStates(tuple(layers))
        states = prefetcher.result(prefetcher.begin(make_states_request(batch, wanted)))
        hidden, aux = pad_states(states, batch, wanted, base)
        return hidden, tuple(aux[0].split(base.hidden_size, -1)) if aux else ()

    return compute
