"""Select and connect the source of hidden states from the settings of a training."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.frame import HeadOnlyBase
from models.methods.settings import FROM_STORE, TrainConfig
from speculoos.errors import BadInput, NotFound
from speculoos.settings import HiddenStatesServer
from training.batches import Batch, TokenisedConversation
from training.hidden_states.client import ReferenceClient, StatesClient
from training.hidden_states.prefetcher import LocalPrefetcher, ServerWaitMonitor, StatesPrefetcher, ThreadedPrefetcher
from training.hidden_states.states_store import StatesStore
from training.hidden_states.vllm import VllmClient
from training.hidden_states.wire import HiddenStates, StatesRequest, compute_states
from training.source import RequiredStates, States, make_states_request, pad_states


@dataclass(frozen=True)
class StatesLocation:
    """The server and the folder that the settings `hidden_states` and `hidden_states_store` refer to."""

    server: HiddenStatesServer | None = None
    folder: Path | None = None


class StoreOnly(StatesClient):
    """In place of a server when all hidden states are read from the store."""

    def states(self, request: StatesRequest) -> HiddenStates:
        raise NotFound(
            f"The store lacks the hidden states of {len(request.rows)} conversations that this training reads.",
            "Train once with a server and this store, or name a server in hidden_states.",
        )


def connect_prefetcher(
    config: TrainConfig,
    location: StatesLocation | None,
    base: Any,
    sha256: str,
    conversations: Sequence[TokenisedConversation],
    watch: ServerWaitMonitor,
) -> StatesPrefetcher | None:
    """Connect and check the source of hidden states, waiting for an unavailable server, and register it with a base
    without layers. None when the base runs here and no store is used. Raises BadInput for another base, Cancelled."""
    if not (config.hidden_states or config.hidden_states_store):
        return None
    location = location or StatesLocation()
    client = _server(config, location.server, base, sha256) if isinstance(base, HeadOnlyBase) else None
    compute = client.states if client else partial(compute_states, base)
    if config.hidden_states_store:
        if location.folder is None:
            raise BadInput("hidden_states_store: it has no folder.")
        store = StatesStore(location.folder, sha256, base.dtype, base.hidden_size)
        compute = partial(store.read_through, compute)
        watch.reporter.log(f"Hidden states are stored in {location.folder}.")
    if client is None:
        return LocalPrefetcher(compute)
    prefetcher = ThreadedPrefetcher(client, watch, compute)
    rows = [conversation.token_ids for conversation in conversations]
    if message := prefetcher.result(prefetcher.call(lambda: client.check(rows))):
        watch.reporter.log(message)
    base.compute_hidden = hidden_states_function(base, prefetcher)
    return prefetcher


def _server(config: TrainConfig, server: HiddenStatesServer | None, base: Any, sha256: str) -> StatesClient:
    if config.hidden_states == FROM_STORE:
        return StoreOnly()
    if server is None:
        raise BadInput(f"hidden_states: there is no server named “{config.hidden_states}” in settings.toml.")
    return VllmClient(server, base) if server.kind == "vllm" else ReferenceClient(server, base, sha256)


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
