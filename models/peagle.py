"""P-EAGLE draft: EAGLE-3's network drafting all depths in one forward (Hui et al. 2026, arXiv 2602.01469).

Offsets: position t reads the fused feature of t and token t+1 and predicts token t+2, as in EAGLE-3. Position t+d of
the rollout from t (d = 1, 2, …) has no feature and no token yet: it reads the learned `mask_hidden` in place of the
fused layers, and the embedding of `mask_token_id`. It attends to positions 0…t and to its rollout's positions up to
itself, and predicts token t+2+d.

Tensors have the names of speculators' `peagle` and vLLM's parallel drafting. speculators trains the embeddings and not
the lm_head; here embeddings are the base's, frozen and not stored, unless imported, and the lm_head is trained."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from models.base import aux_layers
from models.chain_attention import ChainAttention, Chunk, query_chunks
from models.draft_layers import check_bounds
from models.eagle3 import Eagle3Config, Eagle3Draft

MAX_DEPTHS = 64


@dataclass(frozen=True)
class PEagleConfig(Eagle3Config):
    """EAGLE-3's config, the token of positions without one, and the depths that the draft was trained for."""

    mask_token_id: int = 0
    num_depths: int = 4


class PEagleDraft(Eagle3Draft):
    """EAGLE-3's network with `mask_hidden` [1, 1, 3H]: the fused layers of positions that have none."""

    method: ClassVar[str] = "peagle"

    def __init__(self, config: PEagleConfig):
        super().__init__(config)
        self.mask_hidden = nn.Parameter(torch.randn(1, 1, self.fc.in_features))

    @classmethod
    def from_base(
        cls,
        base: Any,
        draft_ids: Tensor | None = None,
        feature_rms: Tensor | None = None,
        mask_token_id: int = 0,
        num_depths: int = 4,
        **options: Any,
    ) -> "PEagleDraft":
        """A new draft: see `Eagle3Draft.from_base` and `from_eagle3`."""
        start = Eagle3Draft.from_base(base, draft_ids, feature_rms, **options)
        return cls.from_eagle3(start, base, feature_rms, mask_token_id, num_depths)

    @classmethod
    def from_eagle3(
        cls, start: Eagle3Draft, base: Any, feature_rms: Tensor | None, mask_token_id: int, num_depths: int
    ) -> "PEagleDraft":
        """A draft with the weights of the EAGLE-3 draft `start`, in its precision: at depth 0 it drafts the same.
        `mask_hidden` is initialized from N(0, 1), times `feature_rms` [3H] if given."""
        draft = cls(PEagleConfig(**asdict(start.config), mask_token_id=mask_token_id, num_depths=num_depths))
        if feature_rms is not None:
            draft.mask_hidden.data.mul_(feature_rms.cpu())
        draft.attach(base).to(start.fc.weight.dtype)  # a half-precision base must not round trained weights
        draft.load_state_dict(start.state_dict(), strict=False)
        draft.scale_features(feature_rms)
        return draft

    @classmethod
    def from_json(cls, data: dict[str, Any], base: Any) -> "PEagleDraft":
        values = {name: data[name] for name in PEagleConfig.__dataclass_fields__ if name in data}
        check_bounds(
            values,
            aux_layers=(0, base.num_layers - 1),
            mask_token_id=(0, base.vocab_size - 1),
            num_depths=(1, MAX_DEPTHS),
        )
        values["aux_layers"] = tuple(values.get("aux_layers") or aux_layers(base.num_layers))
        return cls(PEagleConfig(**values)).attach(base)

    @property
    def mask_token_id(self) -> int:
        return self.config.mask_token_id

    def mask_feature(self) -> Tensor:
        """[1, 1, H]: the feature of every masked position."""
        return self.fuse(self.mask_hidden, (self.mask_hidden,))


class RolloutBackend:
    """Attention of many rollouts in one forward: the L positions of each row's tokens (depth 0), then the rollouts'
    positions of depth 1, of depth 2, …. A position of depth d attends to the tokens up to its anchor and to its own
    rollout's positions of depths 1…d. Keys of the tokens are never repeated.

    Example, tokens 0…4, rollouts from 1 and 3 at depth 1 and from 3 at depth 2: keys 0 1 2 3 4 | 1' 3' | 3''; the last
    one attends to 0 1 2 3, 3' and 3''."""

    def __init__(self, length: int, anchors: list[Tensor], parents: list[Tensor], tokens: Tensor | None = None):
        """`anchors[d - 1]` [B, m_d]: where the rollouts of depth d start, ascending, rows padded with 0;
        `parents[d - 1]` [B, m_d]: their columns in depth d - 1 (of depth 1: not used). `tokens` [B, m]: the queries
        among the tokens; None: all."""
        self.length, self.parents, self._tables = length, parents, [tokens, *anchors]
        self._chunks: list[list[Chunk]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [B, h, m + Σ m_d, d], k and v [B, k, L + Σ m_d, d] → [B, h, m + Σ m_d, d]."""
        sizes = [table.shape[1] for table in self._tables[1:]]
        queries = q.to(v.dtype).split([q.shape[2] - sum(sizes), *sizes], 2)
        keys, values = (x.to(v.dtype).split([self.length, *sizes], 2) for x in (k, v))
        if not self._chunks:
            tables = [None if table is None else table.cummax(1).values for table in self._tables]
            self._chunks = [query_chunks(part, self.length, table) for part, table in zip(queries, tables, strict=True)]
        outputs, own_keys, own_values = [], [], []
        for depth, part in enumerate(queries):
            if depth:
                parents = self.parents[depth - 1]
                own_keys = [*(_columns(x, parents) for x in own_keys), keys[depth]]
                own_values = [*(_columns(x, parents) for x in own_values), values[depth]]
            chunks = self._chunks[depth]
            outputs.append(ChainAttention.apply(part, chunks, keys[0], *own_keys, values[0], *own_values))
        return torch.cat(outputs, 2)


def _columns(x: Tensor, index: Tensor) -> Tensor:
    """x [B, k, n, d] at index [B, m] → [B, k, m, d]."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))
