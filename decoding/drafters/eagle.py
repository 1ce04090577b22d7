"""EAGLE-1 and EAGLE-3 drafters: static trees, EAGLE-2's dynamic trees, chains (a dynamic tree of top_k 1).

The draft extrapolates the base model's features. Its cache has a row (key and value) for every position t of the
sequence except the last: the feature of t with token t+1. The rows of the current tree, whose features are predicted,
follow and are dropped.

A runner is the draft's network itself, or its layers on the fast runtime: fused, packed, and in bfloat16 if the CPU
supports it, since a draft's precision affects the acceptance rate but not the output. Shapes: n positions, H hidden
size of the base model, V' draft vocabulary; no batch dimension.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from decoding.drafters.base import (
    MAX_TUNING_DEPTH,
    WIDEST_TREE,
    ChildSampling,
    Drafter,
    PrefillContext,
    TuningSpace,
    check_ranks,
    is_fast,
)
from decoding.drafters.expansion import DynamicTree, Grown, StaticTree, TreeMask
from decoding.target import MAX_PREFILL_TOKENS, Target, common_prefix
from decoding.tree import DraftTree, TreeShape, shape_from_choices
from models.base import LoadedBase, has_bfloat16
from models.draft_layers import causal_mask
from models.runtime.attention import CacheView, SequenceView
from models.runtime.cache import CacheBackend, KVCache, upload
from models.runtime.graphs import CapturedFunction, MaskLayout, TreeRows, bucket_of, captured
from models.runtime.interface import ForwardOutput
from models.runtime.layer import Norm, norm_of
from models.runtime.linear import packing_works
from models.runtime.rotary import draft_rotations
from models.runtime.weights import pack_draft_layer_inplace, pack_linear_inplace
from speculoos.errors import Unsupported

UNLIMITED = 1 << 40  # maximum length of a draft's cache; the target's cache is full before

GPU_TREE = DynamicTree()  # the default of EAGLE's own code; for a GPU
CPU_TREE = DynamicTree(depth=3, top_k=3, nodes=8)
"""For a CPU, where a forward of eight nodes costs little more than a forward of one."""


class ModuleRunner:
    """The draft's network, unchanged. Training uses it for samples; other forwards are compared with it."""

    def __init__(self, draft: Any):
        self.draft, self.method, self.layers_wanted = draft, draft.method, draft.layers_wanted
        self.logits, self.to_target = draft.logits, draft.to_target

    def new_cache(self) -> KVCache:
        return KVCache(len(self.draft.layers), UNLIMITED, grows=True)

    def fuse(self, hidden: torch.Tensor, aux: torch.Tensor | None) -> torch.Tensor:
        """Features [n, H] from the base model's last hidden states (EAGLE-1) or the outputs of `layers_wanted`."""
        outputs = () if aux is None else tuple(output[None] for output in aux.chunk(len(self.layers_wanted), dim=-1))
        return self.draft.fuse(hidden[None], outputs)[0]

    def __call__(
        self,
        features: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Features [n, H] of positions t and tokens t+1, int64 [n], → features [n, H]; their rows are committed to the
        cache. `mask` bool [n, length + n] is the attention mask; None is causal."""
        out = self.draft(features[None], ids[None], positions[None], CacheBackend(cache, mask))[0]
        cache.stage(len(ids))
        cache.commit_all()
        return out


def packed_runner(draft: Any) -> "PackedRunner":
    """The draft's runner on the fast runtime. The first call moves the weights, so that the draft itself cannot run."""
    if draft.runner is None:
        draft.runner = PackedRunner(draft, drafting_dtype(draft))
    return draft.runner


def drafting_dtype(draft: Any) -> torch.dtype:
    """bfloat16 on CPUs with native support, to halve memory reads; else the draft's own type."""
    weight = next(draft.parameters())
    return torch.bfloat16 if has_bfloat16(weight.device) and packing_works(torch.bfloat16) else weight.dtype


class PackedRunner:
    """As ModuleRunner, on packed weights: reordered for fast products with few tokens (`models.runtime.linear`)."""

    def __init__(self, draft: Any, dtype: torch.dtype):
        self.method, self.layers_wanted, self.dtype = draft.method, tuple(draft.layers_wanted), dtype
        self.eagle3 = draft.method == "eagle3"
        self._embedding = draft.table
        self._fc = pack_linear_inplace(draft, "fc", dtype)
        self._layers = [pack_draft_layer_inplace(layer, draft.config, dtype) for layer in draft.layers]
        self._heads = self._layers[0].heads
        self.layout = MaskLayout((None,), self._heads.group, dtype)
        self._norm = norm_of(draft.norm, dtype=dtype)
        self._norms_output = not self.eagle3 or draft.config.norm_output
        self._fused_norm = _fused_norm(draft, dtype) if self.eagle3 and draft.norms_features else None
        if self.eagle3:
            self._head, self._head_dtype, self._d2t = pack_linear_inplace(draft, "lm_head", dtype), dtype, draft.d2t
        else:  # the base model's, in its precision, because a fast base model's lm_head computes the final logits
            self._head, self._head_dtype, self._d2t = draft._base[0].lm_head, draft._base[0].dtype, None
        shape, self.device = draft.config, self._embedding.weight.device
        self.rotations = draft_rotations(self._heads.dim, shape.rope_theta, self.device, shape.rope_scaling)

    def new_cache(self) -> KVCache:
        return KVCache(len(self._layers), UNLIMITED, grows=True)

    def fuse(self, hidden: torch.Tensor, aux: torch.Tensor | None) -> torch.Tensor:
        if not self.eagle3:
            return hidden.to(self.dtype)
        aux = aux.to(self.dtype)
        return self._fc(aux if self._fused_norm is None else self._fused_norm(aux))

    @torch.inference_mode()
    def __call__(
        self,
        features: torch.Tensor,
        ids: torch.Tensor,
        positions: torch.Tensor,
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As ModuleRunner."""
        n = len(ids)
        self.reserve(cache, n)
        if mask is None and n > 1:
            mask = causal_mask(n, cache.length + n, features.device)
        view = SequenceView(cache, n, {None: None if mask is None else mask.repeat(self.layout.group, 1)})
        rotation = self.rotations.for_length(cache.length + n).index_select(0, positions)
        out = self.compute(features, ids, rotation, view)
        cache.stage(n)
        cache.commit_all()
        return out

    def reserve(self, cache: KVCache, rows: int) -> None:
        """Allocate storage for `rows` more rows of `cache`."""
        cache.reserve(self._heads.num_kv_heads, self._heads.dim, self.dtype, self.device, rows)

    def compute(
        self, features: torch.Tensor, ids: torch.Tensor, rotation: torch.Tensor, view: CacheView
    ) -> torch.Tensor:
        """Run all layers; see `models.runtime.forward.FastForward.compute`."""
        n, x = len(ids), self._fc.pad_rows(features)
        ids = ids if len(x) == n else torch.constant_pad_nd(ids, (0, len(x) - n))
        embedded = F.embedding(ids, self._embedding.weight).to(self.dtype)
        if not self.eagle3:
            x = self._fc(torch.cat([embedded, x], -1))
        for index, layer in enumerate(self._layers):
            x = layer(x, n, rotation, view, index, embedded)
        return (self._norm(x) if self._norms_output else x)[:n]

    def logits(self, features: torch.Tensor) -> torch.Tensor:
        """[n, H] → [n, V']."""
        return self._head((features if self._norms_output else self._norm(features)).to(self._head_dtype))

    def to_target(self, ids: torch.Tensor) -> torch.Tensor:
        """Draft ids as token ids of the base model."""
        return ids if self._d2t is None else ids + self._d2t[ids]


def _fused_norm(draft: Any, dtype: torch.dtype) -> Norm:
    if draft.fc_norm is None:
        return norm_of(draft.input_norm, dtype=dtype)
    norms = [norm_of(norm, dtype=dtype) for norm in draft.fc_norm]
    return lambda aux: torch.cat([norm(x) for norm, x in zip(norms, aux.chunk(len(norms), -1), strict=True)], -1)


EagleRunner = ModuleRunner | PackedRunner  # an EAGLE draft without the batch dimension


class EagleDrafter(Drafter):
    """`tree`: static or dynamic. `sample`: children of a static shape are sampled if the generation samples. On a GPU a
    packed draft grows each tree in one CUDA graph."""

    def __init__(self, draft: EagleRunner, tree: TreeShape | DynamicTree, base: LoadedBase, sample: bool = False):
        self.draft, self.tree, self.sample = draft, tree, sample
        self.vocab_size, self.device = base.vocab_size, base.device
        self.growth = StaticTree(tree, base.device) if isinstance(tree, TreeShape) else tree
        self.graphed = base.device.type == "cuda" and isinstance(draft, PackedRunner)
        self.name = draft.method
        self.layers = tuple(draft.layers_wanted)
        self.cache = draft.new_cache()
        self.shifted_ids: list[int] = []  # token ids 1, 2, … of the sequence: shifted_ids[t] is that of cache row t
        self.first_id = -1  # token id 0 of the sequence, which has no row
        self.pending: list[torch.Tensor] = []
        """Features of tokens whose rows are not computed yet; with graphs also of the last token."""
        self.last = torch.empty(0)  # the draft's output [1, H] after the sequence, the root of the next tree
        self.sampling: ChildSampling | None = None

    def max_reusable_prefix(self, prompt_ids: Sequence[int]) -> int:
        """One less than the common prefix with the present sequence: its last feature must be computed again."""
        computed = len(self.shifted_ids) - sum(map(len, self.pending))  # later rows are predictions of the last tree
        return max(common_prefix([self.first_id, *self.shifted_ids[:computed]], prompt_ids) - 1, 0)

    def prefill(self, start: PrefillContext) -> None:
        self.sampling = start.sampling(self.vocab_size) if self.sample else None
        prompt_ids, target_output = start.prompt_ids, start.target_output
        self.cache.crop(len(prompt_ids) - len(target_output.hidden))
        self.first_id, self.shifted_ids = prompt_ids[0], [*prompt_ids[1:], start.token]
        self.pending = [self._features(target_output)]
        self._compute_pending(leave=1 if self.graphed else 0)

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.shifted_ids += tokens
        self.pending.append(self._features(target_output, nodes))

    @torch.inference_mode()
    def propose(self, token: int) -> DraftTree:
        if isinstance(self.tree, TreeShape) and len(self.tree) == 1:
            return DraftTree((token,))
        uniforms = () if self.sampling is None else (self.sampling.uniforms(self.growth.nodes - 1),)
        if self.graphed:
            return self.growth.tree(token, self._grow_captured(*uniforms))
        uniforms = (upload(numbers, self.device) for numbers in uniforms)
        return self.growth.tree(token, self.growth.grow(self.expander(), self.sampling, *uniforms))

    @torch.inference_mode()
    def expander(self) -> "EagleExpander":
        """An empty tree after the sequence, outside of graphs."""
        if self.pending:
            last = self.pending[-1][-1:]
            self._compute_pending()
            self.pending = [last] if self.graphed else []
        self.cache.crop(len(self.shifted_ids))
        return EagleExpander(self.draft, self.last, self._run)

    def _run(self, features: torch.Tensor, ids: torch.Tensor, level: int, visible: torch.Tensor) -> torch.Tensor:
        """Compute the nodes of a level after the sequence and the levels before."""
        length = len(self.shifted_ids)
        positions = torch.full((len(ids),), length - 1 + level, device=ids.device)
        return self.draft(features, ids, positions, self.cache, F.pad(visible, (length, 0), value=True))

    def _grow_captured(self, *uniforms: torch.Tensor) -> Grown:
        """Compute the pending rows and grow the tree in one graph."""
        most = self.growth.max_depth + 2  # an accepted path with its root, and the last token again
        self._compute_pending(leave=most)
        features, length, rows = torch.cat(self.pending), len(self.shifted_ids), most + self.growth.rows
        start = length - len(features)
        self.cache.crop(start)
        self.draft.reserve(self.cache, rows)
        bucket = bucket_of(start + rows, self.cache.capacity)
        key = bucket, most, self.sampling
        grow = captured(self.cache.replays, key, lambda: self._captured(features, *key, *uniforms))
        grow.fill(features, torch.tensor(self.shifted_ids[start:]), torch.tensor([start, len(features)]), *uniforms)
        self.cache.stage(len(features) - 1)
        self.cache.commit_all()
        self.pending = [features[-1:]]
        return grow()

    def _captured(
        self, features: torch.Tensor, bucket: int, most: int, sampling: ChildSampling | None, *uniforms: torch.Tensor
    ) -> CapturedFunction:
        draft, cache, rotations = self.draft, self.cache, self.draft.rotations.for_length(bucket)

        def compute(features: torch.Tensor, ids: torch.Tensor, at: torch.Tensor, *uniforms: torch.Tensor) -> Grown:
            start, count = at[:1], at[1:]
            rows = start + torch.arange(most, device=ids.device)  # those after `count` are overwritten by the tree
            view = TreeRows(cache, bucket, start, draft.layout).view(rows, causal_mask(most, most, ids.device))
            out = draft.compute(features, ids, rotations[rows], view)
            length = start + count
            tree = TreeRows(cache, bucket, length, draft.layout)

            def run(x: torch.Tensor, ids: torch.Tensor, level: int, visible: torch.Tensor) -> torch.Tensor:
                positions = (length - 1 + level).expand(len(ids))
                return draft.compute(x, ids, rotations[positions], tree.view(positions, visible))

            return self.growth.grow(EagleExpander(draft, out.index_select(0, count - 1), run), sampling, *uniforms)

        integers = torch.zeros(most + 2, dtype=torch.int64, device=self.device)
        buffers = [features.new_zeros(most, features.shape[1]), integers[:most], integers[most:]]
        return CapturedFunction(compute, [*buffers, *(u.to(self.device) for u in uniforms)], rotations)

    @torch.inference_mode()
    def _compute_pending(self, leave: int = 0) -> None:
        """Compute the rows of pending features, except the last `leave`."""
        features = torch.cat(self.pending)
        start, count = len(self.shifted_ids) - len(features), max(len(features) - leave, 0)
        self.pending = [features[count:].clone()] if leave else []
        self.cache.crop(start)
        assert self.cache.length == start, (self.cache.length, start)
        for chunk in features[:count].split(MAX_PREFILL_TOKENS) if count else ():  # a long prompt's mask is too large
            ids = upload(self.shifted_ids[start : start + len(chunk)], self.device)
            positions = torch.arange(start, start + len(chunk), device=self.device)
            self.last = self.draft(chunk, ids, positions, self.cache)[-1:]
            start += len(chunk)

    @torch.inference_mode()
    def _features(self, target_output: ForwardOutput, nodes: Sequence[int] | None = None) -> torch.Tensor:
        """Features of all rows, or of the rows `nodes`."""
        hidden, aux = target_output.hidden, target_output.features if self.layers else None
        if nodes is not None:
            index = upload(list(nodes), hidden.device)
            hidden, aux = hidden[index], None if aux is None else aux[index]
        return self.draft.fuse(hidden, aux)


class EagleExpander:
    """The nodes of one tree of an EAGLE draft; the feature of a node is its parent's output."""

    def __init__(self, draft: EagleRunner, root: torch.Tensor, run: Callable[..., torch.Tensor]):
        """`root` [1, H]: the draft's output after the sequence. `run(features [n, H], token ids [n], level, visible)`:
        outputs [n, H] of a level; `visible`: see `TreeMask.add`."""
        self.draft, self.outputs, self.run, self.mask = draft, root, run, TreeMask(root.device)
        self.token_ids = draft.to_target

    def root(self) -> torch.Tensor:
        return self.draft.logits(self.outputs)

    @torch.inference_mode()
    def add(self, ids: torch.Tensor, parents: torch.Tensor) -> torch.Tensor:
        visible = self.mask.add(parents)
        out = self.run(self.outputs.index_select(0, parents), ids, self.mask.level, visible)
        self.outputs = torch.cat([self.outputs, out])
        return self.draft.logits(out)


def make(target: Target, draft: Any, options: dict[str, Any]) -> EagleDrafter:
    """The drafter of an EAGLE draft. For a fast target the draft's weights are moved to a packed runner."""
    sample = bool(options.pop("sample", False))
    if "tree" in options:
        tree = shape_from_choices(options["tree"])
    else:
        tree = replace(GPU_TREE if target.base.device.type == "cuda" else CPU_TREE, **options)
    draft_vocab_size = getattr(draft.config, "draft_vocab_size", 0) or target.base.vocab_size
    check_ranks(tree.ranks if isinstance(tree, TreeShape) else [tree.top_k - 1], draft_vocab_size)
    if not is_fast(target) and draft.runner is not None:
        raise Unsupported("This draft was packed for a fast target; load it again to use it with another target.")
    runner = packed_runner(draft) if is_fast(target) else ModuleRunner(draft)
    return EagleDrafter(runner, tree, target.base, sample)


def tuning(draft: Any) -> TuningSpace:
    return TuningSpace(MAX_TUNING_DEPTH, lambda depth: {"depth": depth - 1, **WIDEST_TREE}, dynamic=True)
