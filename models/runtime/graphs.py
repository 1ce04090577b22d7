"""CUDA graphs of the fast forward: one per node count, length bucket and set of requested layers.

A graph replays kernels on fixed addresses, so all values that change between steps (tokens, positions, cache rows, tree
mask, length) are in input buffers, and attention covers a whole bucket of cache rows with unused rows masked. A graph
belongs to the device of its cache. Tests run the same computation without a graph on other devices."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from models.runtime.attention import Biases, additive_mask, attend
from models.runtime.cache import KVCache
from models.runtime.interface import ForwardOutput, Inputs, Selection

SMALLEST_BUCKET = 256
MAX_GRAPH_ROWS = 64
"""Maximum nodes; larger forwards are prefills, where kernel launches do not dominate."""
MAX_GRAPHS = 48
"""Maximum graphs per cache; the least recently used is evicted. Generation uses one per node count and bucket."""
WARM_UPS = 3


def bucket_of(rows: int, capacity: int) -> int:
    """Cache rows covered by a graph for `rows` rows: a power of two ≥ 256, at most the cache's capacity."""
    bucket = SMALLEST_BUCKET
    while bucket < rows:
        bucket *= 2
    return min(bucket, capacity)


@dataclass
class Buffers:
    """Input buffers of a graph: ids, positions, rows int64 [n]; mask bool [n, n]; length int64 [1]."""

    ids: torch.Tensor
    positions: torch.Tensor
    rows: torch.Tensor
    mask: torch.Tensor
    length: torch.Tensor

    @classmethod
    def empty(cls, n: int, device: torch.device) -> "Buffers":
        integers = [torch.zeros(n, dtype=torch.int64, device=device) for _ in range(3)]
        return cls(
            *integers, torch.ones(n, n, dtype=torch.bool, device=device).tril(), torch.zeros_like(integers[0][:1])
        )

    def fill(self, inputs: Inputs, length: int) -> None:
        self.ids.copy_(inputs.ids)
        self.positions.copy_(inputs.positions)
        self.length.fill_(length)
        torch.arange(length, length + len(inputs.ids), out=self.rows)
        if inputs.mask is None:
            self.mask.fill_(True).tril_()
        else:
            self.mask.copy_(inputs.mask)

    def inputs(self) -> Inputs:
        return Inputs(self.ids, self.positions, 0, (len(self.ids),))

    def biases(self, windows: Iterable[int | None], bucket: int, group: int, dtype: torch.dtype) -> Biases:
        """Additive mask per window, [group · n, bucket]: `visible_rows` at a fixed width."""
        columns = torch.arange(bucket, device=self.ids.device)
        mask = (columns[None] < self.length).expand(len(self.ids), -1).index_copy(1, self.rows, self.mask)
        positions = columns.index_copy(0, self.rows, self.positions)
        biases = Biases()
        for window in windows:
            visible = mask if window is None else mask & (positions[None] > self.positions[:, None] - window)
            biases[window] = additive_mask(visible, dtype).repeat(group, 1)
        return biases

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in vars(self).values())


class BucketView:
    """Writes keys and values at the cache rows in a buffer; attention over a whole bucket."""

    def __init__(self, cache: KVCache, rows: torch.Tensor, bucket: int, biases: Biases):
        self.cache, self.rows, self.bucket, self.biases = cache, rows, bucket, biases

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        cached = []
        for storage, new in ((self.cache.keys, keys), (self.cache.values, values)):
            storage[layer, 0].index_copy_(1, self.rows, new.transpose(0, 1))
            cached.append(storage[layer, :1, :, : self.bucket])
        return attend(queries, *cached, self.biases[window])


@cache
def _pool(device: torch.device) -> tuple[int, int]:
    """The memory pool of all graphs of a device. They may share it, as results are cloned before another replay."""
    return torch.cuda.graph_pool_handle()


class GraphedForward:
    """Runs `forward.compute` on buffers; on CUDA captured once per key, then replayed."""

    def __init__(self, forward: Any, capture: bool = True, most: int = MAX_GRAPHS):
        self.forward, self.capture, self.most = forward, capture, most

    def supports(self, inputs: Inputs, selection: Selection) -> bool:
        """Whether a graph can run these inputs: few rows of the first sequence only, with logits of all rows."""
        single = len(inputs.counts) == 1 and inputs.first == 0
        return single and len(inputs.ids) <= MAX_GRAPH_ROWS and not selection.last_only

    def __call__(self, inputs: Inputs, cache: KVCache, layers: tuple[int, ...] = ()) -> ForwardOutput:
        """See `models.runtime.interface.Forward`. Storage must be reserved; mutates the cache's `replays`."""
        bucket = bucket_of(cache.length + len(inputs.ids), cache.max_length)
        key = (len(inputs.ids), bucket, layers)
        if key not in cache.replays:
            while len(cache.replays) >= self.most:
                cache.replays.popitem(last=False)
            cache.replays[key] = _GraphReplay(self.forward, cache, *key)
        cache.replays.move_to_end(key)
        replay = cache.replays[key]
        with torch.cuda.device(cache.keys.device) if self.capture else nullcontext():
            replay.buffers.fill(inputs, cache.length)
            if self.capture and replay.graph is None:
                replay.record()
            return replay()


class _GraphReplay:
    def __init__(self, forward: Any, cache: KVCache, nodes: int, bucket: int, layers: tuple[int, ...]):
        self.forward, self.cache, self.bucket, self.selection = forward, cache, bucket, Selection(layers)
        self.buffers = Buffers.empty(nodes, cache.keys.device)
        self.rotations = forward.rotations.for_length(cache.max_length)
        """Kept alive: the graph reads this table even after a longer context made the forward compute a new one."""
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: ForwardOutput | None = None
        self.nbytes = self.buffers.nbytes
        """Bytes of device memory of the buffers and the graph's memory pool."""

    def __call__(self) -> ForwardOutput:
        if self.graph is None:
            return self._compute()
        self.graph.replay()
        last = self.result  # cloned: drafters keep rows, and the next replay overwrites them
        features = None if last.features is None else last.features.clone()
        return ForwardOutput(last.logits.clone(), last.hidden.clone(), features)

    def record(self) -> None:
        """Warm up on a side stream of the cache's device, as graph capture requires, then capture there. Rows are
        written several times with the same values. Other threads may use the device meanwhile."""
        device = self.cache.keys.device
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._compute()
        torch.cuda.current_stream(device).wait_stream(stream)
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(device)
        # Without `stream`, capture runs on a stream of the device of the process's first capture.
        with torch.cuda.graph(graph, _pool(device), stream, capture_error_mode="thread_local"):
            self.result = self._compute()
        self.nbytes += max(torch.cuda.memory_reserved(device) - before, 0)
        self.graph = graph

    def _compute(self) -> ForwardOutput:
        forward, buffers = self.forward, self.buffers
        biases = buffers.biases(forward.windows, self.bucket, forward.heads.group, forward.base.dtype)
        view = BucketView(self.cache, buffers.rows, self.bucket, biases)
        return forward.compute(buffers.inputs(), self.rotations[buffers.positions], view, self.selection)
