"""EAGLE-3 training with training-time test (Li et al. 2025, section 3): the draft is unrolled on its own outputs.

Example of the offsets: a row of 7 tokens, prompt 0…2, answer 3…6; c[t] is the fused feature of t, p[t] the base's
distribution after token t (over token t+1). Step 0 at position t reads c[t] and token t+1 and is trained on p[t+1];
step j reads its own step j−1 output at t and token t+1+j and is trained on p[t+1+j].

    t   step 0: reads → target     step 1: reads → target     step 2: reads → target
    2   c[2], token 3 → token 4    x0[2], token 4 → token 5   x1[2], token 5 → token 6
    3   c[3], token 4 → token 5    x0[3], token 5 → token 6   –
    4   c[4], token 5 → token 6    –                          –

Step j counts at t when tokens t+1 … t+2+j are in one answer and the base's top token after t+1+j is in the draft
vocabulary. Loss: Σ_j ttt_decay^j · (Σ −Σ p log q) / count_j, p restricted to the draft vocabulary and renormalized.
(The reference implementation divides by all positions instead of the counted ones.) `ttt_loss` chooses another distance
than −Σ p log q; with dpace, each position has a weight from the draft's confidence in the data's tokens
(`training.losses.dpace_weights`) in place of ttt_decay^j.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from models.base import aux_layers
from models.chain_attention import ChainBackend
from models.eagle3 import Eagle3Draft
from models.logits import Head
from models.methods.settings import TrainConfig
from models.runtime.argmax import argmax
from training.batches import Batch, TokenizedConversation, choose_vocabulary
from training.eagle import next_tokens, unrolled_hits
from training.losses import dpace_weights, label_losses, unrolled_loss
from training.medusa import labelled_positions
from training.method import Outcome, PaddedStates, RequiredStates, forward_states

SCALE_CONVERSATIONS, SCALE_LENGTH = 16, 256


class Eagle3Method(nn.Module):
    """The EAGLE-3 draft. The feature scale, and a new draft's vocabulary, are measured on `conversations`."""

    depth_name = "depth"
    needs_conversations = True

    def __init__(
        self,
        config: TrainConfig,
        base: Any,
        draft: Eagle3Draft | None = None,
        conversations: Sequence[TokenizedConversation] = (),
    ):
        super().__init__()
        self._base = (base,)
        self.start_note = ""
        self.steps = config.ttt_steps
        self.dpace_alpha = config.dpace_alpha if config.ttt_loss == "dpace" else 0.0
        self.kind = "ce" if self.dpace_alpha else config.ttt_loss
        self.weights = [1.0 if self.dpace_alpha else config.ttt_decay**j for j in range(self.steps)]
        if draft:
            draft.scale_features(feature_rms(base, draft.layers_wanted, conversations))
            self.draft = draft
        else:
            ids, self.start_note = choose_vocabulary(conversations, config, base)
            self.draft = Eagle3Draft.from_base(
                base,
                ids,
                feature_rms=feature_rms(base, config.aux_layers, conversations),
                aux_layers=config.aux_layers,
                norm_before_residual=config.norm_before_residual,
                norm_before_fc=config.norm_before_fc,
                fc_norm=config.fc_norm,
                norm_output=config.norm_output,
            )
        self.draft.float()
        self.multi_layer = len(self.draft.layers) > 1  # every position is computed, since the next layer attends to it
        self._head = target_head(self.draft, base)
        self._frozen = self._head.folded() if draft is None and not config.train_lm_head else None
        self.draft.lm_head.requires_grad_(config.train_lm_head)

    def required_states(self, batch: Batch) -> RequiredStates:
        """The fused layers at every position, the head's input only where it gives a target distribution."""
        return RequiredStates(self.draft.layers_wanted, target_positions(batch.mask))

    @torch.no_grad()
    def features(self, batch: Batch, states: PaddedStates | None = None) -> dict[str, Tensor]:
        """aux [B, L, 3H], hidden [B, L, H], labels [B, L, steps]; row, position [N]; in_vocab [B, L]: see
        `_in_draft_vocab`."""
        features = fused_features(self._base[0], self.draft.layers_wanted, batch, states, self.steps)
        return {**features, "in_vocab": self._in_draft_vocab(features["hidden"], batch.mask)}

    def counts(self, features: dict[str, Tensor]) -> Tensor:
        return torch.stack([self._targets(features, j)[0].sum() for j in range(self.steps)])

    def forward(self, features: dict[str, Tensor], seed: int = 0, scale: Tensor | None = None) -> Outcome:
        row, position, hidden = features["row"], features["position"], features["hidden"]
        labels = features["labels"][row, position]
        table, column = (None, position) if self.multi_layer else pad_positions_by_row(row, position, len(hidden))
        backend, x = ChainBackend(table), self._fused(features)
        outputs, target_indices, counted_by_step = [], [], []
        flat_index = torch.arange(hidden[..., 0].numel(), device=row.device).view(hidden.shape[:2])
        for j in range(self.steps):
            tokens, positions = next_tokens(features["input_ids"], j)
            if j and table is not None:  # step 0 already stored the keys of the whole row
                tokens, positions = tokens.gather(1, table), positions.gather(1, table)
            x = self.draft(x, tokens, positions, backend, None if j else table)
            counted, target_position = self._targets(features, j)
            outputs.append(x[row[counted], column[counted]])
            target_indices.append(flat_index[row[counted], target_position])
            counted_by_step.append(counted)
        targets, inverse = torch.cat(target_indices).unique(return_inverse=True)
        x, scale = torch.cat(outputs), torch.ones(self.steps, device=row.device) if scale is None else scale
        del outputs
        x, head = self.draft.lm_head_input(x), self._frozen or Head(self.draft.lm_head.weight, self.draft.lm_head.bias)
        counted = torch.stack(counted_by_step, 1)
        loss, loss_sums, step_hits = unrolled_loss(
            x,
            head,
            hidden.flatten(0, 1)[targets],
            self._head,
            list(inverse.split([len(indices) for indices in target_indices])),
            scale,
            self.kind,
            self._dpace_weights(x, head, labels, counted) if self.dpace_alpha else None,
        )
        hits = torch.zeros_like(counted)
        hits.T[counted.T] = torch.cat(step_hits)
        return Outcome(loss, loss_sums, hits, labels >= 0)

    @torch.no_grad()
    def drafted(self, features: dict[str, Tensor]) -> Outcome:
        return unrolled_hits(self.draft, features, self._fused(features), self.steps, self.draft.logits)

    def _dpace_weights(self, x: Tensor, head: Head, labels: Tensor, counted: Tensor) -> Tensor:
        """Weights of the rows of x, which are the `counted` positions [N, steps] of one step after the other."""
        columns = self.draft.to_draft(labels)
        losses = torch.full(counted.shape, torch.inf, device=x.device)
        losses.T[counted.T] = label_losses(x, head, columns.T[counted.T])
        return dpace_weights(losses, counted, self.dpace_alpha).T[counted.T]

    def _fused(self, features: dict[str, Tensor]) -> Tensor:
        return self.draft.fuse(features["hidden"], (features["aux"].float(),))

    def _targets(self, features: dict[str, Tensor], step: int) -> tuple[Tensor, Tensor]:
        """bool [N]: which positions count at `step`; and for those the position t+1+step of the target distribution."""
        row, position = features["row"], features["position"]
        valid = features["labels"][row, position, step] >= 0
        target_position = (position + 1 + step).clamp(max=features["in_vocab"].shape[1] - 1)
        counted = valid & features["in_vocab"][row, target_position]
        return counted, target_position[counted]

    def _in_draft_vocab(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """bool [B, L]: the base's top token is in the draft vocabulary; computed only before or in an answer."""
        base, in_vocab = self._base[0], torch.zeros_like(mask)
        if self.draft.config.draft_vocab_size == base.vocab_size:
            return torch.ones_like(mask)
        row, position = target_positions(mask).nonzero(as_tuple=True)
        best = [argmax(base.logits(part)) for part in hidden[row, position].split(256)]
        in_vocab[row, position] = self.draft.t2d[torch.cat(best)] if best else False
        return in_vocab


def target_head(draft: Any, base: Any) -> Head:
    """The base's head in the base's dtype, restricted to the draft vocabulary; not a copy if that has all tokens."""
    head = base.head.to(base.dtype)
    return head if len(draft.draft_ids) == base.vocab_size else head.rows(draft.draft_ids)


def fused_features(
    base: Any, layers: tuple[int, ...], batch: Batch, states: PaddedStates | None, depths: int
) -> dict[str, Tensor]:
    """aux [B, L, layers · H] and hidden [B, L, H] of the base model, from `states` or computed; input_ids [B, L]; and
    `labelled_positions`."""
    hidden, aux = states or forward_states(base, batch, RequiredStates(layers))
    features = {"aux": torch.cat(aux, -1), "hidden": hidden, "input_ids": batch.input_ids}
    return {**features, **labelled_positions(batch, depths)}


def target_positions(mask: Tensor) -> Tensor:
    """bool [B, L]: positions directly before or in an answer."""
    before_or_in = mask.clone()
    before_or_in[:, :-1] |= mask[:, 1:]
    return before_or_in


@torch.no_grad()
def feature_rms(base: Any, layers: Sequence[int], conversations: Sequence[TokenizedConversation]) -> Tensor | None:
    """Root mean square [3H] of each channel of the fused layers over the first conversations; None without any. A row's
    first token is excluded: in many models it is an attention sink with a norm of thousands."""
    total, count = torch.zeros(()), 0
    for conversation in conversations[:SCALE_CONVERSATIONS]:
        ids = conversation.token_ids[None, :SCALE_LENGTH].long().to(base.device)
        _, aux = base.forward_hidden(ids, layers=tuple(layers) or aux_layers(base.num_layers))
        features = torch.cat(aux, -1)[0, 1:].float()
        total, count = total.to(features.device) + features.square().sum(0), count + len(features)
    return (total / count).sqrt() if count else None


def pad_positions_by_row(row: Tensor, position: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Positions (row, position) [N], ascending, as a table [rows, m] padded with 0, and the column of each. Rows 0, 0,
    2 at positions 3, 4, 7 of 3 rows: [[3, 4], [0, 0], [7, 0]] and columns 0, 1, 0."""
    counts = torch.bincount(row, minlength=rows)
    column = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row]
    table = position.new_zeros(rows, max(int(counts.max()), 1))
    table[row, column] = position
    return table, column
