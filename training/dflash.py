"""DFlash training: blocks at random anchors of the answers (Chen et al. 2026, arXiv 2602.06036, section 4).

Example of the offsets: a row of 8 tokens, prompt 0…2, answer 3…7, blocks of 4; c[t] is the fused feature of t, h[t] the
base's final hidden state, which predicts token t+1. The block at anchor 3 reads c[0…2], token 3 and three masks:

    input   token 3   mask      mask      mask
    output  –         token 4   token 5   token 6     target distributions: of h[3], h[4], h[5]

An anchor is a token of an answer whose next token is in it too: where the engine drafts. Position k of a block counts
when tokens a … a+k are in one answer and token a+k is in the draft vocabulary. Loss: Σ w · l / count over all counted
positions. l is the cross-entropy of token a+k (ce) or a distance from the base's distribution (kl, reverse_kl, tv), w:

- decay: exp(−(k − 1) / gamma), as in z-lab's recipe; divided by the number of positions as in speculators, while
  SpecForge divides by the sum of the weights;
- dpace: Σ_{j ≥ k} Π_{i ≤ j} ((1 − alpha) q_i + alpha), q_i the draft's probability of token a+i, without gradient
  (D-PACE, the default of speculators 0.9).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.block_attention import BlockBackend
from models.dflash import DFlashDraft
from models.methods.settings import TrainConfig
from training.batches import Batch, TokenizedConversation, choose_vocabulary
from training.eagle3 import fused_features, target_head, target_positions
from training.losses import block_loss, dpace_weights
from training.method import Outcome, PaddedStates, RequiredStates, label_ranks, outcome_of_ranks


class DFlashMethod(nn.Module):
    """The DFlash draft with its loss. A new draft's vocabulary is counted over `conversations`."""

    depth_name = "depth"
    needs_conversations = True
    weights = (1.0,)

    def __init__(
        self,
        config: TrainConfig,
        base: Any,
        draft: DFlashDraft | None = None,
        conversations: Sequence[TokenizedConversation] = (),
    ):
        super().__init__()
        self._base, self.config = (base,), config
        self.start_note, ids = "", None
        if draft is None:
            ids, self.start_note = choose_vocabulary(conversations, config, base)
        self.draft = draft or DFlashDraft.from_base(
            base,
            ids,
            dflash_num_layers=config.dflash_num_layers,
            block_size=config.block_size,
            mask_token_id=config.mask_token_id,
            aux_layers=config.aux_layers,
        )
        self.draft.float()
        self.depth = self.draft.block_size - 1
        self._head = (self.draft.head.to(torch.float32),)
        self._target_head = (target_head(self.draft, base),) if config.dflash_loss != "ce" else ()
        positions = torch.arange(self.depth, device=base.device)
        self._decay = (torch.exp(-positions / config.position_gamma),)

    def required_states(self, batch: Batch) -> RequiredStates:
        """The fused layers at every position; the head's input where a distribution is a target."""
        if self.config.dflash_loss == "ce":
            return RequiredStates(self.draft.layers_wanted, torch.zeros_like(batch.mask))
        return RequiredStates(self.draft.layers_wanted, target_positions(batch.mask))

    @torch.no_grad()
    def features(self, batch: Batch, states: PaddedStates | None = None) -> dict[str, Tensor]:
        """aux [B, L, layers · H]; hidden [B, L, H], unless the loss is ce; labels [B, L, depth] of the block at anchor
        t+1; row, position t [N] of all anchors t+1."""
        features = fused_features(self._base[0], self.draft.layers_wanted, batch, states, self.depth)
        if self.config.dflash_loss == "ce":
            del features["hidden"]
        return features

    def draw(self, features: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
        """With `chosen` [n], ascending: the anchors of a step, at most `max_anchors`, chosen at random."""
        count = len(features["row"])
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        chosen = order[: self.config.max_anchors].sort().values
        return {**features, "chosen": chosen.to(features["row"].device)}

    def counts(self, features: dict[str, Tensor]) -> Tensor:
        return (self._columns(features, *self._anchors(features)) >= 0).sum().reshape(1)

    def forward(self, features: dict[str, Tensor], seed: int = 0, scale: Tensor | None = None) -> Outcome:
        row, position = self._anchors(features)
        columns = self._columns(features, row, position)
        x = self._outputs(features, row, position)
        targets = None
        if self._target_head:
            hidden = features["hidden"]
            index = position[:, None] + torch.arange(1, self.depth + 1, device=row.device)
            index = row[:, None] * hidden.shape[1] + index.clamp(max=hidden.shape[1] - 1)
            targets = hidden.flatten(0, 1), self._target_head[0], index
        scale = torch.ones(1, device=row.device) if scale is None else scale
        head, kind = self._head[0], self.config.dflash_loss
        loss, loss_sums, hits = block_loss(x, head, columns, self._weights, scale, kind, targets)
        return Outcome(loss, loss_sums, hits, features["labels"][row, position] >= 0)

    @torch.no_grad()
    def drafted(self, features: dict[str, Tensor]) -> Outcome:
        """Drafted ranks at every anchor, one column per position of a block; row by row, to bound memory."""
        ranks = []
        for number in range(len(features["aux"])):
            row, position = (features[name][features["row"] == number] for name in ("row", "position"))
            columns, own = self._columns(features, row, position), {"aux": features["aux"][number, None]}
            own["input_ids"] = features["input_ids"][number, None]
            x = self._outputs(own, torch.zeros_like(row), position)
            ranks.append([label_ranks(self._head[0], x[:, k], columns[:, k]) for k in range(self.depth)])
        labels = features["labels"][features["row"], features["position"]]
        return outcome_of_ranks(torch.cat([torch.stack(each, 1) for each in ranks]), labels >= 0)

    def _anchors(self, features: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """row, position [n] of the step's anchors; of all without `draw`."""
        chosen = features.get("chosen", slice(None))
        return features["row"][chosen], features["position"][chosen]

    def _columns(self, features: dict[str, Tensor], row: Tensor, position: Tensor) -> Tensor:
        """Columns [n, depth] of the labels; −100 where there is none."""
        return self.draft.to_draft(features["labels"][row, position])

    def _outputs(self, features: dict[str, Tensor], row: Tensor, position: Tensor) -> Tensor:
        """[n, depth, H]: the head's input at positions 1 … depth of the blocks at anchors t+1."""
        ids, anchor = features["input_ids"], position + 1
        context = self.draft.fuse(features["aux"].float()), torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        positions = anchor[:, None] + torch.arange(self.draft.block_size, device=ids.device)
        block_ids = self.draft.block_ids(ids[row, anchor])
        return self.draft(block_ids, positions, BlockBackend(row, anchor, len(ids)), context)[:, 1:]

    def _weights(self, losses: Tensor, counted: Tensor) -> Tensor:
        """Weights [n, depth] of positions with these losses."""
        if self.config.position_weights == "decay":
            return self._decay[0].expand_as(losses)
        return dpace_weights(losses, counted, self.config.dpace_alpha)
