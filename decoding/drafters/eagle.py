"""EAGLE-1 and EAGLE-3 drafters: static trees, EAGLE-2's dynamic trees, chains (a dynamic tree of top_k 1).

The draft extrapolates the base model's features. Its cache has a row (key and value) for every position t of the
sequence except the last: the feature of t with token t+1. The rows of the current tree, whose features are predicted,
follow and are dropped.

A runner is the draft's network itself, or its layers on the fast runtime: fused, packed, and in bfloat16 if the CPU
supports it, since a draft's precision affects the acceptance rate but not the output. Shapes: n positions, H hidden
size of the base model, V' draft vocabulary; no batch dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F

from decoding.drafters.base import (
    MAX_TUNING_DEPTH,
    WIDEST_TREE,
    Drafter,
    PrefillContext,
    SamplingParams,
    TuningSpace,
    check_ranks,
    is_fast,
)
from decoding.drafters.expansion import grow_dynamic, grow_static
from decoding.target import MAX_PREFILL_TOKENS, Target, common_prefix
from decoding.tree import DraftTree, TreeShape, shape_from_choices
from models.base import has_bfloat16
from models.draft_layers import causal_mask
from models.methods import trees
from models.runtime.attention import SequenceView
from models.runtime.cache import CacheBackend, KVCache
from models.runtime.interface import ForwardOutput
from models.runtime.layer import Norm, norm_of
from models.runtime.linear import packing_works
from models.runtime.rotary import draft_rotations
from models.runtime.weights import pack_draft_layer_inplace, pack_linear_inplace
from speculoos.errors import BadInput, Unsupported

UNLIMITED = 1 << 40  # maximum length of a draft's cache; the target's cache is full before
MAX_CANDIDATES = 65_536  # largest number of candidates of a dynamic tree in one step


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's settings: `depth` expansions after the first level, `top_k` candidates each, `nodes` with the root."""

    depth: int = 7
    top_k: int = 10
    nodes: int = 60

    def __post_init__(self) -> None:
        for name in ("depth", "top_k", "nodes"):
            if getattr(self, name) < (minimum := 0 if name == "depth" else 1):
                raise BadInput(f"{name}: expected {minimum} or more, got {getattr(self, name)}.")
        if self.depth > trees.MAX_DEPTH or self.depth * self.top_k**2 > MAX_CANDIDATES:
            raise BadInput(
                f"depth is at most {trees.MAX_DEPTH}, and depth times top_k squared at most {MAX_CANDIDATES:,}; "
                f"got depth {self.depth}, top_k {self.top_k}."
            )


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
        ids: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Features [n, H] of positions t and tokens t+1 → features [n, H]; their rows are committed to the cache.
        `mask` bool [n, length + n] is the attention mask; None is causal."""
        inputs = torch.tensor([ids, positions], device=features.device)
        out = self.draft(features[None], inputs[:1], inputs[1:], CacheBackend(cache, mask))[0]
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
        self._norm = norm_of(draft.norm, dtype=dtype)
        self._norms_output = not self.eagle3 or draft.config.norm_output
        self._fused_norm = _fused_norm(draft, dtype) if self.eagle3 and draft.norms_features else None
        if self.eagle3:
            self._head, self._head_dtype, self._d2t = pack_linear_inplace(draft, "lm_head", dtype), dtype, draft.d2t
        else:  # the base model's, in its precision, because a fast base model's lm_head computes the final logits
            self._head, self._head_dtype, self._d2t = draft._base[0].lm_head, draft._base[0].dtype, None
        shape, device = draft.config, self._embedding.weight.device
        self._rotations = draft_rotations(self._heads.dim, shape.rope_theta, device, shape.rope_scaling)

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
        ids: Sequence[int],
        positions: Sequence[int],
        cache: KVCache,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As ModuleRunner."""
        n, device = len(ids), features.device
        x = self._fc.pad_rows(features)
        tokens = torch.tensor([*ids, *[0] * (len(x) - n)], device=device)
        embedded = F.embedding(tokens, self._embedding.weight).to(self.dtype)
        cache.reserve(self._heads.num_kv_heads, self._heads.dim, self.dtype, device, n)
        if mask is None and n > 1:
            mask = causal_mask(n, cache.length + n, device)
        view = SequenceView(cache, n, {None: None if mask is None else mask.repeat(self._heads.group, 1)})
        rotation = self._rotations.for_length(max(positions) + 1)  # [positions, 1, dim / 2]
        if isinstance(positions, range):
            rotation = rotation[positions.start : positions.stop]
        else:
            rotation = rotation.index_select(0, torch.tensor(positions, device=rotation.device))
        if not self.eagle3:
            x = self._fc(torch.cat([embedded, x], -1))
        for index, layer in enumerate(self._layers):
            x = layer(x, n, rotation, view, index, embedded)
        cache.stage(n)
        cache.commit_all()
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
    """`tree`: static or dynamic. `sample`: children of a static shape are sampled if the generation samples."""

    def __init__(self, draft: EagleRunner, tree: TreeShape | DynamicTree, vocab_size: int, sample: bool = False):
        self.draft, self.tree, self.vocab_size, self.sample = draft, tree, vocab_size, sample
        self.name = draft.method
        self.layers = tuple(draft.layers_wanted)
        self.cache = draft.new_cache()
        self.shifted_ids: list[int] = []  # token ids 1, 2, … of the sequence: shifted_ids[t] is that of cache row t
        self.first_id = -1  # token id 0 of the sequence, which has no row
        self.pending: list[torch.Tensor] = []  # features of tokens whose rows are not computed yet
        self.last = torch.empty(0)  # the draft's output [1, H] after the sequence, the root of the next tree
        self.sampling: SamplingParams | None = None
        self._outputs = self.last  # outputs [1 + nodes, H] of the current tree; the root's (`last`) is first
        self._visible: list[list[int]] = []
        """For each of these nodes, the tree's rows it attends to: its ancestors' and its own."""
        self._depths: list[int] = []

    def max_reusable_prefix(self, prompt_ids: Sequence[int]) -> int:
        """One less than the common prefix with the present sequence: its last feature must be computed again."""
        computed = len(self.shifted_ids) - sum(map(len, self.pending))  # later rows are predictions of the last tree
        return max(common_prefix([self.first_id, *self.shifted_ids[:computed]], prompt_ids) - 1, 0)

    def prefill(self, start: PrefillContext) -> None:
        self.sampling = start.sampling(self.vocab_size) if self.sample else None
        prompt_ids, target_output = start.prompt_ids, start.target_output
        self.cache.crop(len(prompt_ids) - len(target_output.hidden))
        self.first_id, self.shifted_ids = prompt_ids[0], [*prompt_ids[1:], start.token]
        self.pending = [self._features(target_output, slice(None))]
        self._compute_pending()

    def update(self, tokens: Sequence[int], target_output: ForwardOutput, nodes: Sequence[int]) -> None:
        self.shifted_ids += tokens
        self.pending.append(self._features(target_output, list(nodes)))

    def propose(self, token: int) -> DraftTree:
        if isinstance(self.tree, DynamicTree):
            return grow_dynamic(token, self, self.tree.depth, self.tree.top_k, self.tree.nodes)
        return grow_static(self.tree, token, self, self.sampling)

    @torch.inference_mode()
    def root(self, token: int) -> torch.Tensor:
        """Draft logits [V'] after the sequence."""
        if self.pending:
            self._compute_pending()
        self.cache.crop(len(self.shifted_ids))
        self._outputs = self.last
        self._visible, self._depths = [[]], [0]
        return self.draft.logits(self.last)[0]

    @torch.inference_mode()
    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Draft logits [n, V'] after new nodes; the feature of a node is its parent's output."""
        rows, first = len(self._visible) - 1, len(self._visible)
        for index, parent in enumerate(parents):
            self._visible.append([*self._visible[parent], rows + index])
            self._depths.append(self._depths[parent] + 1)
        mask = self._mask(self._visible[first:], rows + len(tokens))
        features = self._outputs.index_select(0, torch.tensor(parents, device=self._outputs.device))
        positions = [len(self.shifted_ids) - 1 + depth for depth in self._depths[first:]]
        out = self.draft(features, tokens, positions, self.cache, mask)
        self._outputs = torch.cat([self._outputs, out])
        return self.draft.logits(out)

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return self.draft.to_target(choices)

    def _mask(self, visible: Sequence[Sequence[int]], rows: int) -> torch.Tensor:
        """Bool [nodes, sequence + rows]: each node attends to the whole sequence and its `visible` rows of the tree."""
        mask = [[False] * rows for _ in visible]
        for node_mask, visible_rows in zip(mask, visible, strict=True):
            for row in visible_rows:
                node_mask[row] = True
        return F.pad(torch.tensor(mask, device=self.last.device), (len(self.shifted_ids), 0), value=True)

    @torch.inference_mode()
    def _compute_pending(self) -> None:
        features = torch.cat(self.pending)
        start = len(self.shifted_ids) - len(features)
        self.cache.crop(start)
        assert self.cache.length == start, (self.cache.length, start)
        for chunk in features.split(MAX_PREFILL_TOKENS):  # the mask of a long prompt would be quadratic in its length
            ids = self.shifted_ids[start : start + len(chunk)]
            positions = range(start, start + len(chunk))
            self.last = self.draft(chunk, ids, positions, self.cache)[-1:]
            start = positions.stop
        self.pending = []

    @torch.inference_mode()
    def _features(self, target_output: ForwardOutput, index: slice | list[int]) -> torch.Tensor:
        return self.draft.fuse(target_output.hidden[index], target_output.features[index] if self.layers else None)


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
    return EagleDrafter(runner, tree, target.base.vocab_size, sample)


def tuning(draft: Any) -> TuningSpace:
    return TuningSpace(MAX_TUNING_DEPTH, lambda depth: {"depth": depth - 1, **WIDEST_TREE}, dynamic=True)
