"""The fast forward: packed, fused weights for the supported families. Used for plain decoding, verification, prefill
and batches. Same interface as `TransformersForward`, equal results up to rounding."""

import copy
from functools import cached_property

import torch
from torch.nn import functional as F

from models.base import LoadedBase
from models.runtime.argmax import HeadArgmax, argmax_table
from models.runtime.attention import CacheView, RaggedView, SequenceView, StepView, attention_biases
from models.runtime.cache import KVCache
from models.runtime.graphs import GraphedForward, MaskLayout
from models.runtime.interface import LOGITS, Forward, ForwardOutput, Inputs, Selection
from models.runtime.layer import norm_of
from models.runtime.rotary import base_rotations
from models.runtime.transformers import TransformersForward
from models.runtime.weights import heads_of, not_fast_reason, pack_head_inplace, pack_layers_inplace
from speculoos.errors import Unsupported


def fastest_forward(base: LoadedBase) -> Forward:
    """The fastest forward of this base: FastForward, or TransformersForward for the reason in `not_fast_reason`. The
    first call may pack the base's weights; later calls return the same forward."""
    if base.forward is None:
        base.forward = TransformersForward(base) if not_fast_reason(base) else FastForward(base)
    return base.forward


class FastForward:
    """Llama, Mistral, Qwen 2/3, Phi and Phi-3 without transformers' overhead. Takes the base's layers
    (`models.runtime.weights.pack_layers_inplace`): the base keeps embeddings, norms, LM head and tokenizer, but
    transformers can no longer run it. Raises Unsupported for other families."""

    name, ragged = "fast", True

    def __init__(self, base: LoadedBase):
        if reason := not_fast_reason(base):
            raise Unsupported(f"No fast forward for this base: {reason}.")
        self.base = base
        self.heads = heads_of(base.config)
        self.table = argmax_table(base)
        self.head = pack_head_inplace(base)  # before the layers: the largest matrix is temporarily in memory twice
        self.layers = pack_layers_inplace(base)
        self.norm = norm_of(base.final_norm)
        windows = tuple({layer.window: None for layer in self.layers})
        self.layout = MaskLayout(windows, self.heads.group, base.dtype)
        self.rotations = base_rotations(base)
        self.graphs = GraphedForward(self) if base.device.type == "cuda" else None

    def cut(self, layers: int) -> "FastForward":
        """A forward with only the first `layers` layers, sharing all weights, to measure the cost of such a draft."""
        shallow = copy.copy(self)
        shallow.layers = self.layers[:layers]
        shallow.graphs = GraphedForward(shallow) if self.graphs is not None else None
        return shallow

    @cached_property
    def argmax(self) -> HeadArgmax | None:
        """Created at the first greedy step, so that a base that only samples or drafts has none."""
        return None if self.table is None else HeadArgmax(self.table)

    @torch.inference_mode()
    def __call__(self, inputs: Inputs, cache: KVCache, selection: Selection = LOGITS) -> ForwardOutput:
        heads, base = self.heads, self.base
        cache.reserve(heads.num_kv_heads, heads.dim, base.dtype, base.device, *inputs.counts, first=inputs.first)
        table = self.rotations.for_length(inputs.max_seq_len)
        if self.graphs is not None and self.graphs.supports(inputs, selection):
            return self.graphs(inputs, cache, selection.layers)
        return self.compute(inputs, table[inputs.positions], self._view(inputs, cache), selection)

    def compute(
        self, inputs: Inputs, rotation: torch.Tensor, view: CacheView, selection: Selection = LOGITS
    ) -> ForwardOutput:
        """Run all layers. rotation: complex [N, 1, dim / 2]; `view` stores keys and values and computes attention."""
        n, outputs = len(inputs.ids), {}
        x = self.head.pad_rows(F.embedding(inputs.ids, self.base.embed_tokens.weight))
        for index, layer in enumerate(self.layers):
            x = layer(x, n, rotation, view, index)
            if index in selection.layers:
                outputs[index] = x[:n]
        hidden = self.norm(x)
        features = torch.cat([outputs[index] for index in selection.layers], dim=-1) if outputs else None
        rows = hidden[inputs.last_rows] if selection.last_only else hidden[:n]
        best = self.argmax(rows) if selection.argmax_only and self.argmax is not None else None
        logits = self.head(rows) if best is None else None
        return ForwardOutput(logits, hidden[:n], features, best)

    def _view(self, inputs: Inputs, cache: KVCache) -> CacheView:
        windows, group, dtype = self.layout
        if len(inputs.counts) == 1:
            start, sequence = cache.lengths[inputs.first], inputs.first
            biases = attention_biases(inputs.mask, inputs.positions, start, windows, group, dtype)
            return SequenceView(cache, len(inputs.ids), biases, sequence)
        if max(inputs.counts) == 1:
            return StepView(cache, inputs, windows, dtype)
        return RaggedView(cache, inputs, windows, group, dtype)
