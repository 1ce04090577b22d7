"""CUDA graphs: whole computations with fixed shapes, captured once and then started by one launch.

A graph replays kernels on fixed addresses, so all values that change between steps (tokens, positions, cache rows, tree
mask, length) are in input buffers, and attention covers a whole bucket of cache rows with unused rows masked. A graph
belongs to the device of its cache. On other devices the same functions run without capture."""

import gc
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch

from models.draft_layers import causal_mask
from models.runtime.attention import Biases, additive_mask, attend
from models.runtime.cache import KVCache
from models.runtime.interface import ForwardOutput, Inputs, Selection

SMALLEST_BUCKET = 256
MAX_GRAPH_ROWS = 64
"""Maximum nodes; larger forwards are prefills, where kernel launches do not dominate."""
MAX_GRAPHS = 64
"""Maximum graphs per cache; the least recently used is evicted. Generation uses one per node count and bucket."""
WARM_UPS = 3

Tensors = tuple[torch.Tensor | None, ...]


def bucket_of(rows: int, capacity: int) -> int:
    """Cache rows covered by a graph for `rows` rows: a power of two ≥ 256, at most the cache's capacity."""
    bucket = SMALLEST_BUCKET
    while bucket < rows:
        bucket *= 2
    return min(bucket, capacity)


class MaskLayout(NamedTuple):
    """What the attention masks of a model depend on: windows of its layers, query heads per key head, dtype."""

    windows: tuple[int | None, ...]
    group: int
    dtype: torch.dtype


def bucket_biases(
    length: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    mask: torch.Tensor,
    bucket: int,
    layout: MaskLayout,
) -> Biases:
    """Additive mask per window, [group · n, bucket], of the last n of `rows` [m] (int64) with `positions` [m]:
    `visible_rows` at a fixed width. `length` [1]: committed rows, to which all attend; `mask` bool [n, m]: attention
    among `rows`."""
    columns, n = torch.arange(bucket, device=rows.device), len(mask)
    visible = (columns[None] < length).expand(n, -1).index_copy(1, rows, mask)
    biases, own = Biases(), positions[len(positions) - n :, None]
    for window in layout.windows:
        near = visible if window is None else visible & (columns.index_copy(0, rows, positions)[None] > own - window)
        biases[window] = additive_mask(near, layout.dtype).repeat(layout.group, 1)
    return biases


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


class TreeRows:
    """New cache rows within a graph, level by level, after `length` [1] committed rows."""

    def __init__(self, cache: KVCache, bucket: int, length: torch.Tensor, layout: MaskLayout):
        self.cache, self.bucket, self.length, self.layout = cache, bucket, length, layout
        self.positions = length[:0]

    def view(self, positions: torch.Tensor, visible: torch.Tensor) -> BucketView:
        """The view for n more rows with `positions` [n]; `visible` bool [n, rows so far with these]."""
        self.positions = torch.cat([self.positions, positions])
        rows = self.length + torch.arange(len(self.positions), device=positions.device)
        biases = bucket_biases(self.length, rows, self.positions, visible, self.bucket, self.layout)
        return BucketView(self.cache, rows[len(rows) - len(positions) :], self.bucket, biases)


def padded_rows(
    cache: KVCache, bucket: int, at: torch.Tensor, most: int, layout: MaskLayout
) -> tuple[torch.Tensor, BucketView, TreeRows]:
    """Within a graph, `most` causal rows from row at[0], of which at[1] are real (`at` int64 [2]): their positions and
    view, and the rows of the tree after the real ones, which overwrite the others."""
    start, count = at[:1], at[1:]
    positions = start + torch.arange(most, device=at.device)
    view = TreeRows(cache, bucket, start, layout).view(positions, causal_mask(most, most, at.device))
    return positions, view, TreeRows(cache, bucket, start + count, layout)


@cache
def _pool(device: torch.device) -> tuple[int, int]:
    """The memory pool of all graphs of a device. They may share it, as results are copied before another replay."""
    return torch.cuda.graph_pool_handle()


@contextmanager
def _no_collection() -> Iterator[None]:
    """No garbage collection meanwhile: if it frees another graph during a capture, the capture fails."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class CapturedFunction:
    """A function of `buffers`, tensors of fixed shapes on one device; on CUDA a graph, captured at the first call."""

    def __init__(self, compute: Callable[..., Tensors], buffers: Sequence[torch.Tensor], keep: Any = None):
        """`keep` is kept alive: tensors besides the buffers that the graph reads."""
        self.compute, self.buffers, self.keep = compute, tuple(buffers), keep
        self.device = self.buffers[0].device
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Tensors = ()
        self.nbytes = sum(buffer.nbytes for buffer in self.buffers)
        """Bytes of device memory of the buffers and the graph's memory pool."""

    def fill(self, *inputs: torch.Tensor) -> None:
        """Copy `inputs`, of any device, to the start of the buffers."""
        for buffer, value in zip(self.buffers, inputs, strict=True):
            if self.device.type == "cuda" and value.device.type == "cpu":
                value = value.pin_memory()
            buffer[: len(value)].copy_(value, non_blocking=True)

    @torch.inference_mode()
    def __call__(self) -> Tensors:
        """The results for what the buffers hold, as new tensors: another graph may use the memory of a graph's own."""
        if self.device.type != "cuda":
            return self.compute(*self.buffers)
        with torch.cuda.device(self.device):
            if self.graph is None:
                self._record()
            self.graph.replay()
            return tuple(None if result is None else result.clone() for result in self.result)

    def _record(self) -> None:
        """Warm up on a side stream of the device, as graph capture requires, then capture there. Cache rows are written
        several times with the same values. Other threads may use the device meanwhile."""
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self.compute(*self.buffers)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph, before = torch.cuda.CUDAGraph(), torch.cuda.memory_reserved(self.device)
        # Without `stream`, capture runs on a stream of the device of the process's first capture.
        with _no_collection(), torch.cuda.graph(graph, _pool(self.device), stream, capture_error_mode="thread_local"):
            self.result = self.compute(*self.buffers)
        self.nbytes += max(torch.cuda.memory_reserved(self.device) - before, 0)
        self.graph = graph


def captured(graphs: OrderedDict[Any, CapturedFunction], key: Any, make: Callable[[], CapturedFunction]) -> Any:
    """The function `key` of `graphs`, made at first use. Mutates `graphs`: the least recently used is evicted."""
    if key not in graphs:
        while len(graphs) >= MAX_GRAPHS:
            graphs.popitem(last=False)
        graphs[key] = make()
    graphs.move_to_end(key)
    return graphs[key]


class GraphedForward:
    """Runs `forward.compute` on buffers as CUDA graphs: one per node count, length bucket and set of layers."""

    def __init__(self, forward: Any):
        self.forward = forward

    def supports(self, inputs: Inputs, selection: Selection) -> bool:
        """Whether a graph can run these inputs: few rows of the first sequence only, with logits of all rows."""
        single = len(inputs.counts) == 1 and inputs.first == 0
        return single and len(inputs.ids) <= MAX_GRAPH_ROWS and not selection.last_only

    def __call__(self, inputs: Inputs, cache: KVCache, layers: tuple[int, ...] = ()) -> ForwardOutput:
        """See `models.runtime.interface.Forward`. Storage must be reserved; mutates the cache's `replays`."""
        n, length = len(inputs.ids), cache.length
        bucket = bucket_of(length + n, cache.max_length)
        replay = captured(cache.replays, (n, bucket, layers), lambda: self._function(cache, n, bucket, layers))
        ids, positions, rows, mask, start = replay.buffers
        ids.copy_(inputs.ids)
        positions.copy_(inputs.positions)
        start.fill_(length)
        torch.arange(length, length + n, out=rows)
        if inputs.mask is None:
            mask.fill_(True).tril_()
        else:
            mask.copy_(inputs.mask)
        return ForwardOutput(*replay())

    def _function(self, cache: KVCache, n: int, bucket: int, layers: tuple[int, ...]) -> CapturedFunction:
        forward, device, selection = self.forward, cache.keys.device, Selection(layers)
        # Kept alive: the graph reads this table even after a longer context made the forward compute a new one.
        rotations = forward.rotations.for_length(cache.max_length)

        def compute(ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor, *rest: torch.Tensor) -> Tensors:
            mask, length = rest
            biases = bucket_biases(length, rows, positions, mask, bucket, forward.layout)
            view = BucketView(cache, rows, bucket, biases)
            output = forward.compute(Inputs(ids, positions, 0, (n,)), rotations[positions], view, selection)
            return output.logits, output.hidden, output.features

        integers = [torch.zeros(n, dtype=torch.int64, device=device) for _ in range(3)]
        mask = torch.ones(n, n, dtype=torch.bool, device=device).tril()
        return CapturedFunction(compute, [*integers, mask, torch.zeros_like(integers[0][:1])], rotations)
