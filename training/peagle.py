"""P-EAGLE training: rollouts of all depths in one forward, with random depth sampling (Hui et al. 2026, section 3).

Example of the offsets: a row of 7 tokens, prompt 0…2, answer 3…6; c[t] is the fused feature of t, p[t] the base's
distribution after token t (over token t+1), m the mask. Depth 0 at t reads c[t] and token t+1 and is trained on p[t+1];
depth d of the rollout from t reads m at position t+d and is trained on p[t+1+d].

    t   depth 0: reads → target    depth 1 at t+1 → target    depth 2 at t+2 → target
    2   c[2], token 3 → token 4    m → token 5                m → token 6
    3   c[3], token 4 → token 5    m → token 6                –
    4   c[4], token 5 → token 6    –                          –

Depth d counts at t when tokens t+1 … t+2+d are in one answer. Of the rollouts that reach depth d, a share of
max(down_sample_ratio^d, down_sample_ratio_min) is computed up to it (`sample_rollouts`), so that memory is a small
multiple of the tokens. Loss: the mean of −Σ p log q over all computed positions, p restricted to the draft vocabulary
and renormalized; its gradient is that of speculators' KL. Differences from speculators: rollouts are sampled from the
deepest up, so that their number does not depend on chance, and never start in a prompt.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from models.eagle3 import Eagle3Draft
from models.logits import Head
from models.mask_token import mask_token
from models.methods.settings import TrainConfig
from models.peagle import PEagleDraft, RolloutBackend
from training.batches import Batch, TokenizedConversation, choose_vocabulary
from training.eagle import next_tokens
from training.eagle3 import feature_rms, fused_features, pad_positions_by_row, target_head, target_positions
from training.losses import unrolled_loss
from training.method import Outcome, PaddedStates, RequiredStates, label_ranks, outcome_of_ranks


class PEagleMethod(nn.Module):
    """The P-EAGLE draft. The feature scale, and a new draft's vocabulary, are measured on `conversations`."""

    depth_name = "depth"
    needs_conversations = True
    weights = (1.0,)

    def __init__(
        self,
        config: TrainConfig,
        base: Any,
        draft: Eagle3Draft | None = None,
        conversations: Sequence[TokenizedConversation] = (),
    ):
        super().__init__()
        self._base, self.start_note = (base,), ""
        self.ratio, self.least_ratio = config.down_sample_ratio, config.down_sample_ratio_min
        if isinstance(draft, PEagleDraft):
            draft.scale_features(feature_rms(base, draft.layers_wanted, conversations))
            self.draft = draft
        else:
            self.draft = self._new_draft(config, base, conversations, draft)
        self.draft.float()
        self.depths = self.draft.config.num_depths
        self.multi_layer = len(self.draft.layers) > 1  # every position is computed, since the next layer attends to it
        self._head = target_head(self.draft, base)

    def _new_draft(
        self, config: TrainConfig, base: Any, conversations: Sequence[TokenizedConversation], start: Eagle3Draft | None
    ) -> PEagleDraft:
        mask_id = mask_token(base) if config.mask_token_id is None else config.mask_token_id
        if start is not None:
            rms = feature_rms(base, start.layers_wanted, conversations)
            return PEagleDraft.from_eagle3(start, base, rms, mask_id, config.num_depths)
        ids, self.start_note = choose_vocabulary(conversations, config, base)
        return PEagleDraft.from_base(
            base,
            ids,
            feature_rms=feature_rms(base, config.aux_layers, conversations),
            mask_token_id=mask_id,
            num_depths=config.num_depths,
            aux_layers=config.aux_layers,
            eagle_num_layers=config.eagle_num_layers,
        )

    def required_states(self, batch: Batch) -> RequiredStates:
        """The fused layers at every position, the head's input only where it gives a target distribution."""
        return RequiredStates(self.draft.layers_wanted, target_positions(batch.mask))

    @torch.no_grad()
    def features(self, batch: Batch, states: PaddedStates | None = None) -> dict[str, Tensor]:
        """aux [B, L, 3H], hidden [B, L, H], labels [B, L, depths]; row, position [N] counted."""
        return fused_features(self._base[0], self.draft.layers_wanted, batch, states, self.depths)

    def counts(self, features: dict[str, Tensor]) -> Tensor:
        reached = (_labels(features) >= 0).sum(0).tolist()
        counts = rollout_counts(reached, self.ratio, self.least_ratio)
        return torch.tensor([sum(counts)], device=features["row"].device)

    def forward(self, features: dict[str, Tensor], seed: int = 0, scale: Tensor | None = None) -> Outcome:
        generator = torch.Generator().manual_seed(seed)
        reached = _labels(features) >= 0
        return self.loss(features, sample_rollouts(reached, self.ratio, self.least_ratio, generator), scale)

    def loss(self, features: dict[str, Tensor], kept: Tensor, scale: Tensor | None = None) -> Outcome:
        """The loss of the positions `kept`, bool [N, depths]; a position is kept only if those above it are."""
        row, position, hidden = features["row"], features["position"], features["hidden"]
        outputs, targets = self._rollouts(features, kept), []
        flat_index = torch.arange(hidden[..., 0].numel(), device=row.device).view(hidden.shape[:2])
        for depth in range(self.depths):
            chosen = kept[:, depth]
            targets.append(flat_index[row[chosen], position[chosen] + 1 + depth])
        distinct, inverse = torch.cat(targets).unique(return_inverse=True)
        scale = torch.ones(1, device=row.device) if scale is None else scale
        loss, loss_sums, depth_hits = unrolled_loss(
            self.draft.lm_head_input(torch.cat(outputs)),
            Head(self.draft.lm_head.weight, self.draft.lm_head.bias),
            hidden.flatten(0, 1)[distinct],
            self._head,
            list(inverse.split([len(indices) for indices in targets])),
            scale.expand(self.depths),
        )
        hits = torch.zeros_like(kept)
        for depth, hit in enumerate(depth_hits):
            hits[kept[:, depth], depth] = hit
        return Outcome(loss, loss_sums.sum()[None], hits, kept)

    @torch.no_grad()
    def drafted(self, features: dict[str, Tensor]) -> Outcome:
        """Ranks of the labels at every position and depth."""
        labels = _labels(features)
        reached = labels >= 0
        columns = self.draft.to_draft(labels)
        ranks = torch.zeros_like(labels)
        for depth, x in enumerate(self._rollouts(features, reached)):
            chosen = reached[:, depth]
            ranks[chosen, depth] = label_ranks(self.draft.logits, x, columns[chosen, depth])
        return outcome_of_ranks(ranks, reached)

    def _rollouts(self, features: dict[str, Tensor], kept: Tensor) -> list[Tensor]:
        """Outputs [N_d, H] of each depth where `kept` [N, depths], by one forward of the draft."""
        row, position, input_ids = features["row"], features["position"], features["input_ids"]
        rows, length = input_ids.shape
        tables, columns = [], torch.zeros_like(kept, dtype=torch.int64)
        for depth in range(self.depths):
            chosen = kept[:, depth]
            table, columns[chosen, depth] = pad_positions_by_row(row[chosen], position[chosen], rows)
            tables.append(table)
        anchors, parents = tables[1:], []
        for depth, table in enumerate(anchors, 1):
            chosen, parent = kept[:, depth], torch.zeros_like(table)
            parent[row[chosen], columns[chosen, depth]] = columns[chosen, depth - 1]
            parents.append(parent)
        tokens, positions = next_tokens(input_ids, 0)
        counts = [table.shape[1] for table in anchors]
        masks = tokens.new_full((rows, sum(counts)), self.draft.config.mask_token_id)
        fused = self.draft.fuse(features["hidden"], (features["aux"].float(),))
        index, first = None, length
        if not self.multi_layer:
            index = torch.cat([tables[0], length + torch.arange(sum(counts), device=row.device).expand(rows, -1)], 1)
            first = tables[0].shape[1]
        else:
            columns[:, 0] = position
        x = self.draft(
            torch.cat([fused, self.draft.mask_feature().expand(*masks.shape, -1)], 1),
            torch.cat([tokens, masks], 1),
            torch.cat([positions, *(table + depth for depth, table in enumerate(anchors, 1))], 1),
            RolloutBackend(length, anchors, parents, None if self.multi_layer else tables[0]),
            index,
        )
        starts = [0, *accumulate(counts, initial=first)]
        return [x[row[chosen], starts[d] + columns[chosen, d]] for d, chosen in enumerate(kept.unbind(1))]


def _labels(features: dict[str, Tensor]) -> Tensor:
    """int64 [N, depths] at the counted positions; −100: none."""
    return features["labels"][features["row"], features["position"]]


def rollout_counts(reached: Sequence[int], ratio: float, least: float) -> list[int]:
    """How many of the `reached` positions of each depth are computed: all of depth 0, of depth d a share of
    max(ratio^d, least)."""
    return [int(count * (max(ratio**depth, least) if depth else 1)) for depth, count in enumerate(reached)]


def sample_rollouts(reached: Tensor, ratio: float, least: float, generator: torch.Generator) -> Tensor:
    """bool [N, depths]: positions to compute, of `reached` [N, depths], where each row is True up to some depth. A
    rollout kept at one depth is kept at those above it. The numbers are those of `rollout_counts`; `generator` is a
    CPU's."""
    kept, deeper = torch.zeros_like(reached), torch.zeros_like(reached[:, 0])
    counts = rollout_counts(reached.sum(0).tolist(), ratio, least)
    for depth in reversed(range(len(counts))):
        order = torch.rand(len(reached), generator=generator).to(reached.device) + 2.0 * deeper
        order = order.masked_fill(~reached[:, depth], -1.0)
        kept[order.topk(counts[depth]).indices, depth] = True
        deeper = kept[:, depth]
    return kept
