"""EAGLE-1 and EAGLE-3 as drafters: static trees, EAGLE-2's dynamic trees, chains (a dynamic tree of top_k 1).

The draft continues the base's own features. Its cache has a row for every place t of the text but the last: feature of
t with token t+1. Rows of the tree being drafted, whose features are guesses, come after those and are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from decoding.drafters.base import Drafter, DrafterStart, Sampling
from decoding.drafters.expansion import grow_dynamic, grow_static
from decoding.drafters.parts import DEEPEST, WIDE, TuningSpace, check_columns, is_fast
from decoding.eagle_runner import EagleRunner, ModuleRunner, packed_runner
from decoding.target import PREFILL_ROWS, Target, common_prefix
from decoding.tree import DraftTree, TreeShape, shape_from_choices
from models.methods import trees
from models.runtime.interface import Scored
from speculoos.errors import BadInput, Unsupported

MOST_CANDIDATES = 65_536
"""Of a dynamic tree: what its levels choose from in one step."""


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's settings: `depth` expansions after the first level, `top_k` candidates each, `nodes` with the root."""

    depth: int = 7
    top_k: int = 10
    nodes: int = 60

    def __post_init__(self) -> None:
        for name in ("depth", "top_k", "nodes"):
            if getattr(self, name) < (least := 0 if name == "depth" else 1):
                raise BadInput(f"{name}: expected {least} or more, got {getattr(self, name)}.")
        if self.depth > trees.DEEPEST or self.depth * self.top_k**2 > MOST_CANDIDATES:
            raise BadInput(
                f"depth is at most {trees.DEEPEST}, and depth times top_k squared at most {MOST_CANDIDATES:,}; "
                f"got depth {self.depth}, top_k {self.top_k}."
            )


REFERENCE = DynamicTree()
"""What EAGLE's own code uses; for a GPU."""
SMALL = DynamicTree(depth=3, top_k=3, nodes=8)
"""For a CPU, where a forward of eight nodes costs little more than one."""


class EagleDrafter(Drafter):
    """Static `shape`, or a dynamic tree. `sample`: children of a static shape are drawn when the generation samples."""

    def __init__(self, draft: EagleRunner, tree: TreeShape | DynamicTree, vocab_size: int, sample: bool = False):
        self.draft, self.tree, self.vocab_size, self.sample = draft, tree, vocab_size, sample
        self.name = draft.method
        self.layers = tuple(draft.layers_wanted)
        self.cache = draft.new_cache()
        self.text: list[int] = []
        """Tokens 1, 2, … of the text: row t of the cache met text[t]."""
        self.first = -1
        """Token 0 of the text, which no row meets."""
        self.waiting: list[torch.Tensor] = []
        """Features of tokens whose rows are not computed yet."""
        self.last = torch.empty(0)
        """The draft's output [1, H] after the text, from which the next tree grows."""
        self.sampling: Sampling | None = None
        self._outputs = self.last
        """Outputs [1 + nodes, H] of the tree being grown, the root's (`last`) first."""
        self._lines: list[list[int]] = []
        """For each of those, the tree's rows it looks at: its ancestors' and its own."""
        self._depths: list[int] = []

    def reusable(self, prompt_ids: Sequence[int]) -> int:
        """One token fewer than the text shares with the last one: its last feature has to be computed again."""
        known = len(self.text) - sum(map(len, self.waiting))  # rows after these are guesses of the last tree
        return max(common_prefix([self.first, *self.text[:known]], prompt_ids) - 1, 0)

    def prefill(self, opening: DrafterStart) -> None:
        self.sampling = opening.sampling(self.vocab_size) if self.sample else None
        prompt_ids, scored = opening.prompt_ids, opening.scored
        self.cache.crop(len(prompt_ids) - len(scored.hidden))
        self.first, self.text = prompt_ids[0], [*prompt_ids[1:], opening.token]
        self.waiting = [self._features(scored, slice(None))]
        self._catch_up()

    def observe(self, tokens: Sequence[int], scored: Scored, rows: Sequence[int]) -> None:
        self.text += tokens
        self.waiting.append(self._features(scored, list(rows)))

    def propose(self, token: int) -> DraftTree:
        if isinstance(self.tree, DynamicTree):
            return grow_dynamic(token, self, self.tree.depth, self.tree.top_k, self.tree.nodes)
        return grow_static(self.tree, token, self, self.sampling)

    @torch.inference_mode()
    def root(self, token: int) -> torch.Tensor:
        """Draft logits [V'] after the text."""
        if self.waiting:
            self._catch_up()
        self.cache.crop(len(self.text))
        self._outputs = self.last
        self._lines, self._depths = [[]], [0]
        return self.draft.logits(self.last)[0]

    @torch.inference_mode()
    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Draft logits [n, V'] after new nodes, each continuing its parent's output."""
        rows, first = len(self._lines) - 1, len(self._lines)
        for at, parent in enumerate(parents):
            self._lines.append([*self._lines[parent], rows + at])
            self._depths.append(self._depths[parent] + 1)
        mask = self._mask(self._lines[first:], rows + len(tokens))
        features = self._outputs.index_select(0, torch.tensor(parents, device=self._outputs.device))
        positions = [len(self.text) - 1 + depth for depth in self._depths[first:]]
        out = self.draft(features, tokens, positions, self.cache, mask)
        self._outputs = torch.cat([self._outputs, out])
        return self.draft.logits(out)

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return self.draft.to_target(choices)

    def _mask(self, lines: Sequence[Sequence[int]], rows: int) -> torch.Tensor:
        """Bool [nodes, text + rows]: each looks at the whole text and at the rows of its line."""
        seen = [[False] * rows for _ in lines]
        for row, line in zip(seen, lines, strict=True):
            for column in line:
                row[column] = True
        return F.pad(torch.tensor(seen, device=self.last.device), (len(self.text), 0), value=True)

    @torch.inference_mode()
    def _catch_up(self) -> None:
        """Run the rows whose features are known by now; keep the last output, from which the next tree grows."""
        features = torch.cat(self.waiting)
        start = len(self.text) - len(features)
        self.cache.crop(start)
        assert self.cache.length == start, (self.cache.length, start)
        for rows in features.split(PREFILL_ROWS):  # a long prompt at once would need a mask of its length squared
            ids = self.text[start : start + len(rows)]
            places = range(start, start + len(rows))
            self.last = self.draft(rows, ids, places, self.cache)[-1:]
            start = places.stop
        self.waiting = []

    @torch.inference_mode()
    def _features(self, scored: Scored, rows: slice | list[int]) -> torch.Tensor:
        return self.draft.fuse(scored.hidden[rows], scored.features[rows] if self.layers else None)


def make(target: Target, draft: Any, options: dict[str, Any]) -> EagleDrafter:
    """For EAGLE-1 and EAGLE-3. Beside a fast target the draft's weights are taken over, packed."""
    sample = bool(options.pop("sample", False))
    if "tree" in options:
        tree = shape_from_choices(options["tree"])
    else:
        usual = REFERENCE if target.base.device.type == "cuda" else SMALL
        tree = DynamicTree(**{"depth": usual.depth, "top_k": usual.top_k, "nodes": usual.nodes} | options)
    columns = getattr(draft.config, "draft_vocab_size", 0) or target.base.vocab_size
    check_columns(tree.ranks if isinstance(tree, TreeShape) else [tree.top_k - 1], columns)
    if not is_fast(target) and draft.runner is not None:
        raise Unsupported("This draft was packed for a fast target; load it again to use it beside another one.")
    runner = packed_runner(draft) if is_fast(target) else ModuleRunner(draft)
    return EagleDrafter(runner, tree, target.base.vocab_size, sample)


def tuning(draft: Any) -> TuningSpace:
    """Dynamic trees."""
    return TuningSpace(DEEPEST, lambda depth: {"depth": depth - 1, **WIDE}, dynamic=True)
