"""EAGLE-1 training: frozen base, the draft continues its final hidden states (Li et al. 2024, sections 4.2 and 5).

Example of the offsets: a row of 7 tokens, prompt 0…2, answer 3…6; f[t] is the base's final hidden state at t. At
position t the draft reads f[t] and token t+1 and outputs g[t], trained towards f[t+1], whose logits predict token t+2.

    t   reads          target of g[t]        predicts
    2   f[2], token 3  f[3]                  token 4
    3   f[3], token 4  f[4]                  token 5
    4   f[4], token 5  f[5]                  token 6     (f[6] predicts a token that is not in the row)

A position counts when tokens t+1 and t+2 are in one answer: where the engine drafts. Per position the loss is
eagle_feature_weight · smoothL1(g[t], f[t+1]) (mean over H) + eagle_token_weight · −Σ p log q
with p = softmax(W(f[t+1])), q = softmax(W(g[t])) and W the base's head.
Noise uniform in ±eagle_noise · 512 / length is added to the features read.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.chain_attention import ChainBackend
from models.eagle import EagleDraft
from models.methods.eagle import MEASURED_DEPTH
from models.methods.settings import TrainConfig
from training.batches import Batch
from training.losses import soft_loss
from training.medusa import labelled_positions
from training.method import (
    Outcome,
    PaddedStates,
    RequiredStates,
    forward_states,
    label_ranks,
    outcome_of_loss_sums,
    outcome_of_ranks,
)


class EagleMethod(nn.Module):
    depth_name = "depth"

    def __init__(self, config: TrainConfig, base: Any, draft: EagleDraft | None = None):
        super().__init__()
        self._base = (base,)
        self.noise = config.eagle_noise
        self.weights = [config.eagle_feature_weight, config.eagle_token_weight]
        self.draft = draft or EagleDraft.from_base(
            base,
            eagle_num_layers=config.eagle_num_layers,
            use_input_layernorm_in_first_layer=config.use_input_layernorm_in_first_layer,
            use_last_layernorm=config.use_last_layernorm,
        )
        self.draft.float()
        self._head = base.head.to(torch.float32)

    def required_states(self, batch: Batch) -> RequiredStates:
        """The head's input at every position: the draft attends to all of them."""
        return RequiredStates()

    @torch.no_grad()
    def features(self, batch: Batch, states: PaddedStates | None = None) -> dict[str, Tensor]:
        """hidden [B, L, H], input_ids [B, L], lengths [B], labels [B, L, depths]; row, position [N] counted."""
        hidden, _ = states or forward_states(self._base[0], batch, RequiredStates())
        features = {"hidden": hidden, "input_ids": batch.input_ids, "lengths": batch.lengths}
        return {**features, **labelled_positions(batch, MEASURED_DEPTH)}

    def counts(self, features: dict[str, Tensor]) -> Tensor:
        return torch.tensor([len(features["row"])] * 2, device=features["row"].device)

    def forward(self, features: dict[str, Tensor], seed: int = 0, scale: Tensor | None = None) -> Outcome:
        hidden, row, position = features["hidden"].float(), features["row"], features["position"]
        inputs = hidden + self._noise(hidden, features["lengths"], seed) if self.training else hidden
        tokens, positions = next_tokens(features["input_ids"], 0)
        predicted = self.draft(inputs, tokens, positions)[row, position]
        target = hidden[row, position + 1]
        distance = F.smooth_l1_loss(predicted, target, reduction="sum") / hidden.shape[-1]
        token_loss, hits = soft_loss(predicted, self._head, target, self._head)
        return outcome_of_loss_sums([distance, token_loss], scale, hits[:, None], torch.ones_like(hits)[:, None])

    @torch.no_grad()
    def drafted(self, features: dict[str, Tensor]) -> Outcome:
        """Hits of a chain drafted from its own features."""
        return unrolled_hits(self.draft, features, features["hidden"].float(), MEASURED_DEPTH, self._head)

    def _noise(self, hidden: Tensor, lengths: Tensor, seed: int) -> Tensor:
        generator = torch.Generator(device=hidden.device).manual_seed(seed)
        uniform = torch.rand(hidden.shape, generator=generator, device=hidden.device) * 2 - 1
        return uniform * (self.noise * 512 / lengths.to(hidden.dtype))[:, None, None]


def next_tokens(input_ids: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """Inputs of each position t at draft step `step`: token t+1+step (0 beyond the row), and its position t+step."""
    length = input_ids.shape[1]
    tokens = torch.zeros_like(input_ids)
    tokens[:, : max(length - 1 - step, 0)] = input_ids[:, 1 + step :]
    positions = torch.arange(length, device=input_ids.device)[None] + step
    return tokens, positions.expand_as(input_ids)


def unrolled_hits(
    draft: Any, features: dict[str, Tensor], fused: Tensor, depth: int, logits: Callable[[Tensor], Tensor]
) -> Outcome:
    """Greedy hits at depths 1…depth of a chain drafted from every position, each step reading its own features. The
    input tokens are the data's: they equal the drafted ones while the chain is correct; later hits do not matter."""
    row, position = features["row"], features["position"]
    labels = features["labels"][row, position][:, :depth]
    backend, x, ranks = ChainBackend(), fused, []
    columns = draft.to_draft(labels)
    for step in range(depth):
        tokens, positions = next_tokens(features["input_ids"], step)
        x = draft(x, tokens, positions, backend)
        ranks.append(label_ranks(logits, x[row, position], columns[:, step]))
    return outcome_of_ranks(torch.stack(ranks, 1), labels >= 0)
