"""Medusa heads: predict the tokens after the next one from the base's final hidden state.

Source: Cai et al. 2024 (Medusa), section 2; names as in ModelOpt (`medusa_num_heads`, `medusa_num_layers`).

Offsets, 0-based. The base's final hidden state h[t] (the input of its lm_head) predicts token t+1 through the lm_head;
head i predicts token t+2+i. After a prompt of 5 tokens (0…4) h[4] predicts token 5 (the base), 6 (head 0), 7 (head 1).
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.draft_vocabulary import DraftVocabulary
from models.logits import Head, apply_logit_rule
from speculoos.errors import BadInput


@dataclass(frozen=True)
class MedusaConfig:
    """Shape of the heads. Each head is `medusa_num_layers` H×H blocks and its own V×H output matrix, or, with
    `medusa_tie_lm_head`, the base's lm_head, which is neither trained nor stored. `draft_vocab_size` > 0: matrices have
    rows for that many tokens only; a tied one is stored as those rows of the lm_head. `lm_head_bias`: the draft's own
    matrices have a bias, like the base's lm_head."""

    hidden_size: int
    vocab_size: int
    medusa_num_heads: int = 4
    medusa_num_layers: int = 1
    medusa_tie_lm_head: bool = False
    draft_vocab_size: int = 0
    lm_head_bias: bool = False

    def __post_init__(self) -> None:
        for name, least in (("medusa_num_heads", 1), ("medusa_num_layers", int(self.medusa_tie_lm_head))):
            if (value := getattr(self, name)) < least:
                raise BadInput(f"{name}: expected {least} or more, got {value}.")

    @property
    def matrices(self) -> int:
        """Number of output matrices stored in the draft."""
        if self.medusa_tie_lm_head:
            return 1 if self.draft_vocab_size else 0
        return self.medusa_num_heads


class ResBlock(nn.Module):
    """x + SiLU(Wx + b). W and b are initialized to zero, so that a new block is the identity."""

    def __init__(self, hidden_size: int):
        super().__init__()
        self.linear = nn.Linear(hidden_size, hidden_size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(DraftVocabulary):
    """All heads of one base. Tied heads use the base's current lm_head (also if packed) and do not store it. The base's
    logit rule is applied to the output of every head."""

    method: ClassVar[str] = "medusa"
    _no_split_modules: ClassVar[list[str]] = ["ResBlock"]

    def __init__(self, config: MedusaConfig, base: Any):
        super().__init__()
        self.config = config
        h, rows = config.hidden_size, config.draft_vocab_size or config.vocab_size
        self.blocks = nn.ModuleList(
            nn.Sequential(*(ResBlock(h) for _ in range(config.medusa_num_layers)))
            for _ in range(config.medusa_num_heads)
        )
        self.lm_heads = nn.ModuleList(nn.Linear(h, rows, bias=config.lm_head_bias) for _ in range(config.matrices))
        self.add_draft_vocabulary(config.draft_vocab_size)
        self._base = (base,)  # in a tuple: not a submodule
        self.rule = base.logit_rule
        self.to(device=base.device, dtype=base.dtype)

    @classmethod
    def from_base(cls, config: MedusaConfig, base: Any, draft_ids: Tensor | None = None) -> "MedusaHeads":
        """New heads, in the base's dtype and device: blocks at zero, matrices copied from the base's lm_head, so that
        initially every head predicts the base's next token. `draft_ids`: ascending ids of the draft vocabulary,
        `config.draft_vocab_size` of them."""
        own = base.head
        heads = cls(replace(config, lm_head_bias=own.bias is not None), base)
        with torch.no_grad():
            if draft_ids is not None:
                heads.set_draft_ids(draft_ids)
                own = own.rows(draft_ids)
            for linear in heads.lm_heads:
                linear.weight.copy_(own.weight)
                if own.bias is not None:
                    linear.bias.copy_(own.bias)
                linear.requires_grad_(not config.medusa_tie_lm_head)
        return heads

    @classmethod
    def from_json(cls, data: dict[str, Any], base: Any) -> "MedusaHeads":
        """Heads of the stored shape, without loading weights."""
        return cls(MedusaConfig(**{n: data[n] for n in MedusaConfig.__dataclass_fields__ if n in data}), base)

    def to_json(self) -> dict[str, Any]:
        return asdict(self.config)

    @property
    def num_heads(self) -> int:
        return self.config.medusa_num_heads

    def output(self, i: int) -> nn.Module:
        """The output layer [H] → [columns] of head i."""
        if self.config.medusa_tie_lm_head:
            return self.lm_heads[0] if self.config.draft_vocab_size else self._base[0].lm_head
        return self.lm_heads[i]

    def head(self, i: int) -> Head:
        """Output matrix [columns, H], bias and logit rule of head i."""
        linear = self.output(i)
        return Head(linear.weight, linear.bias, self.rule)

    def features(self, i: int, hidden: Tensor) -> Tensor:
        """[..., H] → [..., H]: input of the output matrix of head i."""
        return self.blocks[i](hidden)

    def forward_head(self, i: int, hidden: Tensor) -> Tensor:
        """[..., H] → logits [..., columns] of head i (0-based) for token t+2+i; `to_target` maps columns."""
        return apply_logit_rule(self.output(i)(self.features(i, hidden)), self.rule)

    def forward(self, hidden: Tensor, heads: int | None = None) -> Tensor:
        """[..., H] → logits [heads, ..., columns] of the first `heads` heads (all by default)."""
        count = self.num_heads if heads is None else heads
        if self.config.medusa_tie_lm_head:
            return apply_logit_rule(
                self.output(0)(torch.stack([self.features(i, hidden) for i in range(count)])), self.rule
            )
        return torch.stack([self.forward_head(i, hidden) for i in range(count)])
