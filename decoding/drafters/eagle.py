"""EAGLE-1 and EAGLE-3 as drafters: static trees, EAGLE-2's dynamic trees, chains (a dynamic tree of top_k 1).

The draft continues the base's own features. Its cache has a row for every place t of the text but the last: feature of
t with token t+1. Rows of the tree being drafted, whose features are guesses, come after those and are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from decoding.config import GenerateConfig
from decoding.drafters.base import Speculative
from decoding.drafters.growth import grow_dynamic, grow_static
from decoding.forward import Scored
from decoding.sampling import Warp
from decoding.target import common_prefix
from decoding.tree import DraftTree, TreeShape
from models.draft_layers import DraftCache
from speculoos.errors import BadInput


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's settings: `depth` expansions after the first level, `top_k` candidates each, `nodes` with the root."""

    depth: int = 7
    top_k: int = 10
    nodes: int = 60

    def __post_init__(self) -> None:
        for name in ("depth", "top_k", "nodes"):
            if getattr(self, name) < (0 if name == "depth" else 1):
                raise BadInput(f"{name}: expected 1 or more, got {getattr(self, name)}.")


REFERENCE = DynamicTree()
"""What EAGLE's own code uses; for a GPU."""
SMALL = DynamicTree(depth=3, top_k=3, nodes=8)
"""For a CPU, where a forward of eight nodes costs little more than one."""


class EagleDrafter(Speculative):
    """Static `shape`, or a dynamic tree. `sample`: children of a static shape are drawn when the generation samples."""

    def __init__(
        self, draft: Any, tree: TreeShape | DynamicTree, vocab_size: int, max_length: int, sample: bool = False
    ):
        self.draft, self.tree, self.vocab_size, self.sample = draft, tree, vocab_size, sample
        self.name = draft.method
        self.layers = tuple(draft.layers_wanted)
        self.max_length = max_length
        self.cache = DraftCache()
        self.text: list[int] = []
        """Tokens 1, 2, … of the text: row t of the cache met text[t]."""
        self.first = -1
        """Token 0 of the text, which no row meets."""
        self.waiting: list[torch.Tensor] = []
        """Features of tokens whose rows are not computed yet."""
        self.last = torch.empty(0)
        """The draft's output [1, H] after the text, from which the next tree grows."""
        self.sampling: tuple[Warp, torch.Generator, int] | None = None
        self._outputs = self.last
        """Outputs [1 + nodes, H] of the tree being grown, the root's (`last`) first."""
        self._seen = torch.empty(0)
        """Bool [1 + nodes, nodes]: which of the tree's rows each of those looks at."""

    def reusable(self, prompt_ids: Sequence[int]) -> int:
        """One token fewer than the text shares with the last one: its last feature has to be computed again."""
        known = len(self.text) - sum(map(len, self.waiting))  # rows after these are guesses of the last tree
        return max(common_prefix([self.first, *self.text[:known]], prompt_ids) - 1, 0)

    def prefill(
        self,
        prompt_ids: Sequence[int],
        token: int,
        scored: Scored,
        config: GenerateConfig,
        generator: torch.Generator,
    ) -> None:
        warp = Warp(config.temperature, config.top_k, config.top_p) if config.temperature and self.sample else None
        self.sampling = (warp, generator, self.vocab_size) if warp else None
        kept = len(prompt_ids) - len(scored.hidden)
        self.cache.crop(kept)
        self.first, self.text = prompt_ids[0], [*prompt_ids[1:], token]
        self.waiting = [self._features(scored, slice(None))]
        self._catch_up()

    def observe(self, tokens: Sequence[int], scored: Scored, kept: Sequence[int]) -> None:
        self.text += tokens
        self.waiting.append(self._features(scored, list(kept)))

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
        self._seen = torch.ones(1, 0, dtype=torch.bool, device=self.last.device)
        return self.draft.logits(self.last)[0]

    @torch.inference_mode()
    def add(self, tokens: Sequence[int], parents: Sequence[int]) -> torch.Tensor:
        """Draft logits [n, V'] after new nodes, each continuing its parent's output."""
        device, n = self.last.device, len(tokens)
        above = torch.tensor(parents, device=device)
        own = torch.eye(n, dtype=torch.bool, device=device)
        seen = torch.cat([self._seen[above], own], dim=1)
        whole = torch.ones(n, len(self.text), dtype=torch.bool, device=device)
        self.cache.mask = torch.cat([whole, seen], dim=1)
        depths = seen.sum(dim=1)
        positions = (len(self.text) - 1 + depths).clamp_max(self.max_length - 1)
        out = self._run(self._outputs[above], tokens, positions)
        self._outputs = torch.cat([self._outputs, out])
        self._seen = torch.cat([torch.nn.functional.pad(self._seen, (0, n)), seen])
        return self.draft.logits(out)

    def token_ids(self, choices: torch.Tensor) -> torch.Tensor:
        return self.draft.to_target(choices)

    @torch.inference_mode()
    def _catch_up(self) -> None:
        """Run the rows whose features are known by now; keep the last output, from which the next tree grows."""
        features = torch.cat(self.waiting)
        start = len(self.text) - len(features)
        self.cache.crop(start)
        assert self.cache.length == start, (self.cache.length, start)
        positions = torch.arange(start, len(self.text), device=features.device)
        self.last = self._run(features, self.text[start:], positions)[-1:]
        self.waiting = []

    def _run(self, features: torch.Tensor, tokens: Sequence[int], positions: torch.Tensor) -> torch.Tensor:
        ids = torch.tensor(tokens, device=features.device)
        return self.draft(features[None], ids[None], positions[None], self.cache)[0]

    @torch.inference_mode()
    def _features(self, scored: Scored, rows: slice | list[int]) -> torch.Tensor:
        aux = ()
        if self.layers:
            aux = tuple(part[None] for part in scored.features[rows].chunk(len(self.layers), dim=-1))
        return self.draft.fuse(scored.hidden[rows][None], aux)[0]
