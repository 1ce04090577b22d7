"""Medusa-1 training: frozen base, heads learn from its final hidden states (Cai et al. 2024, section 2.2.1).

Example of the offsets: a row of 7 tokens, prompt 0…2, answer 3…6 (6 ends the turn). The final hidden state h[2] gives
token 3 through the lm_head; head 0 on h[2] is trained on token 4, head 1 on token 5, head 2 on token 6.

    t       2        3        4       (h[5] and h[6] have no token at t+2)
    head 0  token 4  token 5  token 6
    head 1  token 5  token 6  –
    head 2  token 6  –        –

Head i counts at t when tokens t+1 … t+2+i are all in one answer: those are the positions where the engine drafts.
Loss: Σ_i w_i · (sum of head i's cross-entropies / its count), w_i = 0.2·0.8^i (ModelOpt) or 1 (Medusa's first release).
With dpace, w_i is 1 and each position has a weight from the confidence of all heads (`training.losses.dpace_weights`).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.logits import Head
from models.medusa import MedusaConfig, MedusaHeads
from models.methods.settings import TrainConfig
from training.batches import Batch, TokenizedConversation, choose_vocabulary
from training.losses import dpace_weights, hard_loss, label_losses
from training.method import (
    Outcome,
    PaddedStates,
    RequiredStates,
    forward_states,
    label_ranks,
    outcome_of_loss_sums,
    outcome_of_ranks,
)


class MedusaMethod(nn.Module):
    """Medusa heads with their loss. A new draft's vocabulary is counted over `conversations`."""

    depth_name = "head"
    needs_conversations = True

    def __init__(
        self,
        config: TrainConfig,
        base: Any,
        draft: MedusaHeads | None = None,
        conversations: Sequence[TokenizedConversation] = (),
    ):
        super().__init__()
        self._base = (base,)
        self.start_note, ids = "", None
        if draft is None:
            ids, self.start_note = choose_vocabulary(conversations, config, base)
        shape = MedusaConfig(
            base.hidden_size,
            base.vocab_size,
            config.medusa_num_heads,
            config.medusa_num_layers,
            config.medusa_tie_lm_head,
            0 if ids is None else len(ids),
        )
        self.draft = draft or MedusaHeads.from_base(shape, base, ids)
        self.draft.float()
        heads = range(self.draft.num_heads)
        decayed = [config.medusa_coefficient * config.medusa_decay**i for i in heads]
        self.dpace_alpha = config.dpace_alpha if config.medusa_loss == "dpace" else 0.0
        self.weights = decayed if config.medusa_loss == "decayed" else [1.0 for _ in heads]
        self._shared = (base.head.to(torch.float32),) if self.draft.config.matrices == 0 else ()

    def required_states(self, batch: Batch) -> RequiredStates:
        """The head's input where head 0 has a label."""
        return RequiredStates(positions=medusa_labels(batch.input_ids, batch.mask, 1)[:, :, 0] >= 0)

    @torch.no_grad()
    def features(self, batch: Batch, states: PaddedStates | None = None) -> dict[str, Tensor]:
        """hidden [N, H] at the counted positions; columns [N, heads] of the labels in the draft's output (−100: none);
        valid bool [N, heads]: there is a label (which may have no column); row and position [N]."""
        labelled = labelled_positions(batch, self.draft.num_heads)
        row, position = labelled["row"], labelled["position"]
        labels = labelled["labels"][row, position]
        hidden, _ = states or forward_states(self._base[0], batch, RequiredStates())
        columns, valid = self.draft.to_draft(labels), labels >= 0
        features = {"hidden": hidden[row, position], "columns": columns, "valid": valid}
        return {**features, "row": row, "position": position}

    def counts(self, features: dict[str, Tensor]) -> Tensor:
        """Counted positions of each head [heads]: those whose label is in the draft vocabulary."""
        return (features["columns"] >= 0).sum(0)

    def forward(self, features: dict[str, Tensor], seed: int = 0, scale: Tensor | None = None) -> Outcome:
        hidden, columns = features["hidden"].float(), features["columns"]
        hits, weights = torch.zeros_like(columns, dtype=torch.bool), None
        loss_sums = []
        if self.dpace_alpha:
            weights = dpace_weights(self._label_losses(hidden, columns), columns >= 0, self.dpace_alpha)
        for i in range(self.draft.num_heads):
            counted = columns[:, i] >= 0
            x = self.draft.features(i, hidden[counted])
            of_rows = None if weights is None else weights[counted, i]
            total, hit = hard_loss(x, self._head(i), columns[counted, i], of_rows)
            hits[counted, i] = hit
            loss_sums.append(total)
        return outcome_of_loss_sums(loss_sums, scale, hits, features["valid"])

    @torch.no_grad()
    def drafted(self, features: dict[str, Tensor]) -> Outcome:
        """Drafted ranks at each position, one column per depth."""
        hidden, columns = features["hidden"].float(), features["columns"]
        ranks = [
            label_ranks(lambda x, i=i: self._head(i)(self.draft.features(i, x)), hidden, columns[:, i])
            for i in range(self.draft.num_heads)
        ]
        return outcome_of_ranks(torch.stack(ranks, 1), features["valid"])

    @torch.no_grad()
    def _label_losses(self, hidden: Tensor, columns: Tensor) -> Tensor:
        """Cross-entropy of each head [N, heads]."""
        heads = range(self.draft.num_heads)
        losses = [label_losses(self.draft.features(i, hidden), self._head(i), columns[:, i]) for i in heads]
        return torch.stack(losses, 1)

    def _head(self, i: int) -> Head:
        """The output head of head i, in fp32 even if it is a half-precision base's."""
        return self._shared[0] if self._shared else self.draft.head(i)


def labelled_positions(batch: Batch, depths: int) -> dict[str, Tensor]:
    """labels [B, L, depths] as `medusa_labels`; row, position [N] of those with a first label."""
    labels = medusa_labels(batch.input_ids, batch.mask, depths)
    row, position = (labels[:, :, 0] >= 0).nonzero(as_tuple=True)
    return {"labels": labels, "row": row, "position": position}


def medusa_labels(input_ids: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Labels [B, L, heads]: token t+2+i for head i at t, −100 where tokens t+1 … t+2+i are not all in the loss."""
    length = input_ids.shape[1]
    labels = input_ids.new_full((*input_ids.shape, heads), -100)
    in_answer = _shift(mask, 1)
    for i in range(min(heads, length - 2)):
        offset = 2 + i
        in_answer = in_answer & _shift(mask, offset)
        labels[:, : length - offset, i] = input_ids[:, offset:]
        labels[:, :, i].masked_fill_(~in_answer, -100)
    return labels


def _shift(mask: Tensor, offset: int) -> Tensor:
    shifted = torch.zeros_like(mask)
    shifted[:, :-offset] = mask[:, offset:]
    return shifted
