"""Read-through cache: hidden states from the on-disk store; missing rows are requested and stored."""

from collections.abc import Sequence

from torch import Tensor

from speculoos.errors import NotFound
from training.hidden_states.client import StatesClient
from training.hidden_states.states_store import StatesStore
from training.hidden_states.wire import HiddenStates, StatesRequest, concat_states


class StoredStates:
    """Rows from the store `kept`; missing ones from `client`, if any."""

    def __init__(self, kept: StatesStore, client: StatesClient | None):
        self._kept, self._client = kept, client
        self.workers = client.workers if client else 2

    def check(self, rows: Sequence[Tensor]) -> str:
        message = self._client.check(rows) if self._client else ""
        return f"{message} Hidden states are kept in {self._kept.folder}.".strip()

    def states(self, request: StatesRequest) -> HiddenStates:
        singles = [_subset(request, [number]) for number in range(len(request.rows))]
        results = [self._kept.read(single) for single in singles]
        if missing := [number for number, states in enumerate(results) if states is None]:
            subset = _subset(request, missing)
            for number, states in zip(missing, self._from_client(subset).by_row(subset), strict=True):
                self._kept.write(singles[number], states)
                results[number] = states
        return concat_states([states for states in results if states is not None])

    def close(self) -> None:
        if self._client:
            self._client.close()

    def _from_client(self, request: StatesRequest) -> HiddenStates:
        if self._client is None:
            raise NotFound(
                f"{self._kept.folder} lacks the hidden states of {len(request.rows)} conversations that this training "
                "reads.",
                "Train once with a server and this store, or name a server in hidden_states.",
            )
        return self._client.states(request)


def _subset(request: StatesRequest, numbers: Sequence[int]) -> StatesRequest:
    rows = tuple(request.rows[number] for number in numbers)
    positions = None if request.positions is None else tuple(request.positions[number] for number in numbers)
    return StatesRequest(rows, request.layers, positions)
