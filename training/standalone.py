"""Standalone drafts: a small model is trained on the base's answers, with cross-entropy or the base's probabilities.

Sources: Zhou et al. 2023 (DistillSpec) for distillation on the base's own answers, Gu et al. 2024 (MiniLLM) for
reverse KL. Offsets: at position s both models have read tokens 0…s and predict token s+1; s counts when token s+1 is in
an answer. A row of 7 tokens, prompt 0…2, answer 3…6: positions 2, 3, 4, 5 with targets 3, 4, 5, 6.
"""

from typing import Any

import torch
from torch import Tensor, nn

from models.families import logit_rule
from models.logits import Head
from models.methods.settings import TrainConfig
from models.methods.standalone import standalone_sizes
from models.standalone import StandaloneDraft, base_sizes
from training.batches import Batch
from training.losses import hard_loss, soft_loss
from training.medusa import labelled_positions
from training.method import (
    NO_RANK,
    Outcome,
    PaddedStates,
    RequiredStates,
    forward_states,
    label_ranks,
    outcome_of_loss_sums,
    outcome_of_ranks,
)

MEASURED_DEPTH = 4


class StandaloneMethod(nn.Module):
    depth_name = "depth"
    weights = (1.0,)

    def __init__(self, config: TrainConfig, base: Any, draft: StandaloneDraft | None = None):
        super().__init__()
        self._base = (base,)
        self.kind = config.draft_loss
        self._head = base.head.to(torch.float32) if self.kind != "ce" else None
        if draft is None and config.draft_path:
            draft = StandaloneDraft.from_folder(config.draft_path, base)
        if draft is None:
            sizes = standalone_sizes(config, base_sizes(base))
            draft = StandaloneDraft.from_base(base, config.draft_num_layers, sizes, config.draft_init == "random")
        self.draft = draft
        self._rule = logit_rule(self.draft.to_json())
        self.draft.float().requires_grad_(True)
        if config.gradient_checkpointing:
            self.draft.model.activation_checkpointing_enable()

    def required_states(self, batch: Batch) -> RequiredStates | None:
        """The head's input at counted positions; None for cross-entropy."""
        if self.kind == "ce":
            return None
        positions = torch.zeros_like(batch.mask)
        positions[:, :-1] = batch.mask[:, 1:]
        return RequiredStates(positions=positions)

    @torch.no_grad()
    def features(self, batch: Batch, states: PaddedStates | None = None) -> dict[str, Tensor]:
        """input_ids, mask [B, L]; hidden [M, H] of the base at counted positions; row, position [N] of drafting."""
        features = {"input_ids": batch.input_ids, "mask": batch.mask, **labelled_positions(batch, MEASURED_DEPTH)}
        if self.kind != "ce":
            hidden, _ = states or forward_states(self._base[0], batch, RequiredStates())
            features["hidden"] = hidden[_counted_positions(batch.mask)]
        return features

    def counts(self, features: dict[str, Tensor]) -> Tensor:
        return features["mask"][:, 1:].sum().reshape(1)

    def forward(self, features: dict[str, Tensor], seed: int = 0, scale: Tensor | None = None) -> Outcome:
        row, position = _counted_positions(features["mask"])
        x = self.draft.model.base_model(features["input_ids"], use_cache=False).last_hidden_state[row, position]
        if self.kind == "ce":
            total, hits = hard_loss(x, self._draft_head(), features["input_ids"][row, position + 1])
        else:
            total, hits = soft_loss(x, self._draft_head(), features["hidden"].float(), self._head, self.kind)
        return outcome_of_loss_sums([total], scale, hits[:, None], torch.ones_like(hits)[:, None])

    @torch.no_grad()
    def drafted(self, features: dict[str, Tensor]) -> Outcome:
        """A chain from position t reads token t+1 first: depth d is a hit when position t+d predicts token t+1+d."""
        ids, labels = features["input_ids"], features["labels"][features["row"], features["position"]]
        row, position = _counted_positions(features["mask"])
        x = self.draft.model.base_model(ids, use_cache=False).last_hidden_state[row, position]
        ranks = torch.full_like(ids, NO_RANK)
        ranks[row, position] = label_ranks(self._draft_head(), x, ids[row, position + 1])
        depths = torch.arange(1, MEASURED_DEPTH + 1, device=ids.device)
        target_position = (features["position"][:, None] + depths).clamp(max=ids.shape[1] - 1)
        valid = labels >= 0
        target_ranks = ranks[features["row"][:, None], target_position].masked_fill(~valid, NO_RANK)
        return outcome_of_ranks(target_ranks, valid)

    def _draft_head(self) -> Head:
        linear = self.draft.model.get_output_embeddings()
        return Head(linear.weight, getattr(linear, "bias", None), self._rule)


def _counted_positions(mask: Tensor) -> tuple[Tensor, Tensor]:
    """row, position [M] of positions whose next token is in the loss."""
    return mask[:, 1:].nonzero(as_tuple=True)
