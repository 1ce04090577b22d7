"""Servers that send more than was requested: reading stops at the size of the largest valid response."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from models.base import LoadedBase, load_base
from speculoos.errors import BadInput
from speculoos.settings import HiddenStatesServer
from tests.tools.endless import Endless, endless_server
from training.hidden_states.client import OVERHEAD_BYTES, ReferenceClient, VllmClient
from training.hidden_states.wire import StatesRequest

REQUEST = StatesRequest((torch.arange(1, 40),))
IN_FLIGHT = 32 * 2**20
"""Bytes at most that wait in the sockets of both sides."""
MEMORY_LIMIT = 2 * OVERHEAD_BYTES
"""Memory at most for an answer of a thousandth of that, and for asking."""


@pytest.fixture
def endless() -> Iterator[Endless]:
    with endless_server() as server:
        yield server


@pytest.fixture(scope="module")
def base(tiny_base: Any) -> LoadedBase:
    return load_base(tiny_base)


def clients(endless: Endless, base: LoadedBase) -> dict[str, Any]:
    def server(kind: str, **options: Any) -> HiddenStatesServer:
        return HiddenStatesServer("big", endless.url, kind=kind, timeout=30, **options)

    return {
        "ours": ReferenceClient(server("speculoos"), base, "0" * 64),
        "vllm": VllmClient(server("vllm", model="tiny"), base),
        "vllm without a name": VllmClient(server("vllm"), base),
    }


@pytest.mark.parametrize("which", ["ours", "vllm", "vllm without a name"])
@pytest.mark.parametrize(
    "call", [lambda c: c.states(REQUEST), lambda c: c.check(REQUEST.rows)], ids=["states", "check"]
)
def test_a_response_without_end_is_refused(
    which: str, call: Callable[[Any], object], endless: Endless, base: LoadedBase
) -> None:
    client = clients(endless, base)[which]
    tracemalloc.start()
    try:
        with pytest.raises(BadInput, match=r"“big” answers /\S+ with more than the 1\.\d MB that this request allows"):
            call(client)
        assert tracemalloc.get_traced_memory()[1] < MEMORY_LIMIT + len(REQUEST.rows[0]) * 32 * 32
    finally:
        tracemalloc.stop()
        client.close()
    assert endless.sent < IN_FLIGHT


def test_a_response_may_be_as_large_as_requested(base: LoadedBase) -> None:
    rows, width = (torch.arange(5), torch.arange(3)), base.hidden_size
    assert StatesRequest(rows).num_values(width) == 8 * width
    request = StatesRequest(rows, (0, 1, 2), (torch.tensor([1]), torch.tensor([0, 2])))
    assert request.num_values(width) == (3 + 8 * 3) * width
