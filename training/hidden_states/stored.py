"""Hidden states out of a folder; those that are not there yet are asked for, and then kept."""

from collections.abc import Sequence

from torch import Tensor

from speculoos.errors import NotFound
from training.hidden_states.client import Client
from training.hidden_states.kept import KeptStates
from training.hidden_states.wire import HiddenStates, StatesRequest, joined


class StoredStates:
    """Rows that are `kept`; others from `client`, if there is one."""

    def __init__(self, kept: KeptStates, client: Client | None):
        self._kept, self._client = kept, client
        self.workers = client.workers if client else 2

    def check(self, rows: Sequence[Tensor]) -> str:
        said = self._client.check(rows) if self._client else ""
        return f"{said} Hidden states are kept in {self._kept.folder}.".strip()

    def states(self, asked: StatesRequest) -> HiddenStates:
        singles = [_some(asked, [number]) for number in range(len(asked.rows))]
        found = [self._kept.read(single) for single in singles]
        if missing := [number for number, given in enumerate(found) if given is None]:
            wanted = _some(asked, missing)
            for number, given in zip(missing, self._made(wanted).by_row(wanted), strict=True):
                self._kept.write(singles[number], given)
                found[number] = given
        return joined([given for given in found if given is not None])

    def close(self) -> None:
        if self._client:
            self._client.close()

    def _made(self, asked: StatesRequest) -> HiddenStates:
        if self._client is None:
            raise NotFound(
                f"{self._kept.folder} lacks the hidden states of {len(asked.rows)} conversations that this training "
                "reads.",
                "Train once with a server and this store, or name a server in hidden_states.",
            )
        return self._client.states(asked)


def _some(asked: StatesRequest, numbers: Sequence[int]) -> StatesRequest:
    rows = tuple(asked.rows[number] for number in numbers)
    places = None if asked.places is None else tuple(asked.places[number] for number in numbers)
    return StatesRequest(rows, asked.layers, places)
