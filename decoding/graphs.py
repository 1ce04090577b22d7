"""CUDA graphs of the fast forward: one for each node count, length bucket and set of layers asked for.

A graph replays kernels on fixed addresses, so everything that changes from step to step (tokens, positions, cache rows,
the tree's mask, the length) lies in input buffers, and attention looks at a whole bucket of cache rows, those in use
unmasked. The same computation runs without a graph on other devices, which is how it is tested.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decoding.cache import KVCache
from decoding.forward import Scored

SMALLEST_BUCKET = 256
LARGEST_TREE = 64
"""Nodes; larger forwards are prefills, where launching kernels is not what takes the time."""
WARM_UPS = 3


def bucket_of(rows: int, capacity: int) -> int:
    """Cache rows a graph for `rows` rows looks at: a power of two from 256 on, at most the cache's capacity."""
    bucket = SMALLEST_BUCKET
    while bucket < rows:
        bucket *= 2
    return min(bucket, capacity)


@dataclass
class Buffers:
    """What a graph reads anew at every replay. ids, positions, rows int64 [n]; mask bool [n, n]; length int64 [1]."""

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

    def fill(self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, length: int) -> None:
        """The next forward's inputs; without a mask each row sees those before it."""
        n = len(ids)
        self.ids.copy_(ids)
        self.positions.copy_(positions)
        self.length.fill_(length)
        torch.arange(length, length + n, out=self.rows)
        if mask is None:
            self.mask.fill_(True).tril_()
        else:
            self.mask.copy_(mask)

    def biases(self, windows: set[int | None], bucket: int, group: int, dtype: torch.dtype) -> dict[int | None, Any]:
        """For each window what is added to the scores, [group · n, bucket]: `visible_rows` at a fixed width."""
        columns = torch.arange(bucket, device=self.ids.device)
        seen = (columns[None] < self.length).expand(len(self.ids), -1).index_copy(1, self.rows, self.mask)
        places = columns.index_copy(0, self.rows, self.positions)
        made = {}
        for window in windows:
            visible = seen if window is None else seen & (places[None] > self.positions[:, None] - window)
            bias = torch.zeros(visible.shape, dtype=dtype, device=columns.device)
            made[window] = bias.masked_fill(~visible, float("-inf")).repeat(group, 1)
        return made


class BucketRows:
    """Writes a forward's keys and values at the rows in a buffer, and shows attention a whole bucket."""

    def __init__(self, cache: KVCache, rows: torch.Tensor, bucket: int):
        self.cache, self.rows, self.bucket = cache, rows, bucket

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store [n, kv_heads, dim]; views [1, kv_heads, bucket, dim]."""
        shown = []
        for storage, new in ((self.cache.keys, keys), (self.cache.values, values)):
            storage[layer, 0].index_copy_(1, self.rows, new.transpose(0, 1))
            shown.append(storage[layer, :, :, : self.bucket])
        return shown[0], shown[1]


class GraphedForward:
    """Runs `forward.compute` on buffers; on CUDA captured once for each key and replayed from then on."""

    def __init__(self, forward: Any, capture: bool = True):
        self.forward, self.capture = forward, capture

    def takes(self, nodes: int, last_only: bool) -> bool:
        return nodes <= LARGEST_TREE and not last_only

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: KVCache,
        layers: Sequence[int] = (),
    ) -> Scored:
        """See `decoding.forward.Forward`. The cache's storage has been reserved."""
        bucket = bucket_of(cache.length + len(ids), cache.max_length)
        key = (len(ids), bucket, tuple(layers))
        if key not in cache.replays:
            cache.replays[key] = _Replay(self.forward, cache, *key)
        replay = cache.replays[key]
        replay.buffers.fill(ids, positions, mask, cache.length)
        if self.capture and replay.graph is None:
            replay.record()
        return replay()


class _Replay:
    """One graph with its buffers and results."""

    def __init__(self, forward: Any, cache: KVCache, nodes: int, bucket: int, layers: tuple[int, ...]):
        self.forward, self.bucket, self.layers = forward, bucket, layers
        self.buffers = Buffers.empty(nodes, cache.keys.device)
        self.rotations = forward.rotations
        """The table as it was: a graph reads it where it lay, also once a longer context made the forward a new one."""
        self.rows = BucketRows(cache, self.buffers.rows, bucket)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.result: Scored | None = None

    def __call__(self) -> Scored:
        if self.graph is None:
            return self._compute()
        self.graph.replay()
        made = self.result  # overwritten by the next replay, while drafters keep rows of it
        return Scored(
            made.logits.clone(), made.hidden.clone(), None if made.features is None else made.features.clone()
        )

    def record(self) -> None:
        """Warm up on a stream of its own, as capturing asks for, then capture. Rows are written several times over,
        with the same values."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                self._compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.result = self._compute()
        self.graph = graph

    def _compute(self) -> Scored:
        forward, buffers = self.forward, self.buffers
        group = forward.heads // forward.kv_heads
        biases = buffers.biases(forward.windows, self.bucket, group, forward.base.dtype)
        rotation = self.rotations[buffers.positions][:, None]
        return forward.compute(buffers.ids, rotation, biases, self.rows, self.layers)
