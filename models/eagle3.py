"""EAGLE-3 draft: one layer over fused low, middle and high hidden states (Li et al. 2025, EAGLE-3).

Offsets: at place t it reads the fused feature of t and token t+1 and predicts token t+2. Drafting on, its own output at
t stands for the feature of t+1, not fused again. It has its own head over a draft vocabulary: draft id i is token
i + d2t[i] of the base; t2d marks the tokens it has. Embeddings are the base's, frozen and not stored.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.base import aux_layers
from models.draft_layers import (
    Attention,
    Causal,
    LayerShape,
    Memory,
    SwiGLU,
    init_weights,
    pick,
    shape_of,
)
from models.eagle import BorrowedParts

NORM_START = 0.3
"""Part of the base's last norm that a fresh draft starts with. At full size the logits of a draft that knows nothing
lie so far apart that the first loss is 20 nats instead of 10, and later steps pay for it (docs/log.md)."""


@dataclass(frozen=True)
class Eagle3Config(LayerShape):
    """Layer sizes, vocabulary and which base layers (0-based outputs) are fused."""

    vocab_size: int = 0
    draft_vocab_size: int = 0
    aux_layers: tuple[int, ...] = ()
    norm_before_residual: bool = False
    lm_head_bias: bool = False


class Eagle3Layer(nn.Module):
    """Attention over [norm(embedding), norm(feature)] (2H wide), then the MLP; the residual is the feature."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = config.norm_before_residual
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.self_attn = Attention(config, 2 * hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = SwiGLU(hidden, config.intermediate_size)

    def forward(
        self, embedded: Tensor, features: Tensor, positions: Tensor, memory: Memory, asked: Tensor | None = None
    ) -> Tensor:
        normed = self.hidden_norm(features)
        x = torch.cat([self.input_layernorm(embedded), normed], -1)
        residual = pick(normed if self.norm_before_residual else features, asked)
        x = residual + self.self_attn(x, positions, memory, 0, asked)
        return x + self.mlp(self.post_attention_layernorm(x))


class ScaledLinear(nn.Linear):
    """A linear layer without bias that learns in units of its inputs: y = W·(s ∘ x), kept in files as the plain W·s.

    Hidden states have a few channels hundreds of times larger than the rest; with one learning rate for all columns
    these would drown the others. s [in] is rounded to powers of two, so that folding and unfolding lose nothing.
    """

    def __init__(self, rms: Tensor, out_features: int):
        super().__init__(len(rms), out_features, bias=False)
        self.register_buffer("scale", torch.exp2(-rms.clamp(min=1e-3).log2().round()), persistent=False)
        self.register_state_dict_post_hook(_fold)
        self.register_load_state_dict_pre_hook(_unfold)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.weight)

    @property
    def plain_weight(self) -> Tensor:
        """The weight [out, in] for inputs as they are."""
        return self.weight * self.scale


def _fold(module: ScaledLinear, state: dict[str, Tensor], prefix: str, _metadata: Any) -> None:
    state[prefix + "weight"] = module.plain_weight.detach()


def _unfold(module: ScaledLinear, state: dict[str, Tensor], prefix: str, *_rest: Any) -> None:
    if (stored := state.get(prefix + "weight")) is not None:
        state[prefix + "weight"] = stored / module.scale.to(stored.device)


class Eagle3Draft(BorrowedParts, nn.Module):
    """The EAGLE-3 network, with the same face as EAGLE-1: `fuse`, `forward`, `logits`, `to_target`."""

    method: ClassVar[str] = "eagle3"

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        hidden = config.hidden_size
        self.fc = nn.Linear(len(config.aux_layers) * hidden, hidden, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=config.lm_head_bias)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))

    @classmethod
    def from_base(
        cls, base: Any, draft_ids: Tensor | None = None, feature_rms: Tensor | None = None, **options: Any
    ) -> "Eagle3Draft":
        """A fresh draft; `draft_ids` (sorted token ids of the base) is its vocabulary, all tokens by default.

        Its head is a plain linear layer that starts from the base's rows of those tokens, times the base's scale of
        logits where it has one (a cap is left out: servers know none in a draft), with the base's bias; its last norm
        starts from the base's, smaller. `feature_rms` [3H], the size of each channel fused, scales what `fc` reads.
        `options` are fields of Eagle3Config.
        """
        ids = torch.arange(base.vocab_size) if draft_ids is None else draft_ids.cpu().long()
        options["aux_layers"] = tuple(options.get("aux_layers") or aux_layers(base.num_layers))
        head = base.head.rows(ids).folded()
        sizes = {"vocab_size": base.vocab_size, "draft_vocab_size": len(ids), "lm_head_bias": head.bias is not None}
        draft = cls(Eagle3Config(**{**asdict(shape_of(base)), **sizes, **options}))
        if feature_rms is not None:
            draft.fc = ScaledLinear(feature_rms.float().cpu(), base.hidden_size)
        init_weights(draft)
        with torch.no_grad():
            draft.lm_head.weight.copy_(head.weight)
            if head.bias is not None:
                draft.lm_head.bias.copy_(head.bias)
            if (
                isinstance(norm := getattr(base.final_norm, "weight", None), Tensor)
                and "Gemma" not in type(base.model).__name__
            ):
                draft.norm.weight.copy_(norm * NORM_START)
            draft.d2t.copy_(ids - torch.arange(len(ids)))
            draft.t2d.zero_()[ids] = True
        return draft._at(base)

    @classmethod
    def from_json(cls, data: dict[str, Any], base: Any) -> "Eagle3Draft":
        values = {name: data[name] for name in Eagle3Config.__dataclass_fields__ if name in data}
        values["aux_layers"] = tuple(values.get("aux_layers") or aux_layers(base.num_layers))
        return cls(Eagle3Config(**values))._at(base)

    def to_json(self) -> dict[str, Any]:
        return asdict(self.config)

    def scale_features(self, rms: Tensor | None) -> None:
        """Let `fc` learn in units of its inputs' size `rms` [3H]; what it computes stays the same."""
        if rms is not None:
            weight = self.fc.weight
            self.fc = ScaledLinear(rms.float().cpu(), weight.shape[0]).to(weight.device, weight.dtype)
            self.fc.load_state_dict({"weight": weight.detach()})

    @property
    def layers_wanted(self) -> tuple[int, ...]:
        """Base layers (0-based outputs) whose hidden states `fuse` takes, in this order."""
        return self.config.aux_layers

    @property
    def draft_ids(self) -> Tensor:
        """Token ids of the base for each draft id [draft_vocab_size]."""
        return torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t

    def fuse(self, hidden: Tensor, aux: tuple[Tensor, ...] = ()) -> Tensor:
        """Features [B, n, H] from the outputs of `layers_wanted`, each [B, n, H]; `hidden` is not used."""
        return self.fc(torch.cat([a.to(self.fc.weight.dtype) for a in aux], -1))

    def forward(
        self,
        features: Tensor,
        token_ids: Tensor,
        positions: Tensor,
        memory: Memory | None = None,
        asked: Tensor | None = None,
    ) -> Tensor:
        """features [B, n, H] at places t, token_ids [B, n] = tokens t+1, positions [B, n] = t → features [B, n, H].

        `memory`: what attention looks at besides these places, a ChainMemory while training; none for whole rows.
        `asked` [B, m]: give the features of these places only, [B, m, H]; the others are looked at, no more.
        """
        embedded = self.embed(token_ids).to(features.dtype)
        return self.layers[0](embedded, features, positions, memory or Causal(), asked)

    def logits(self, features: Tensor) -> Tensor:
        """[…, H] → [..., draft_vocab_size]; `to_target` names the columns."""
        return self.lm_head(self.norm(features))

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as token ids of the base."""
        return ids + self.d2t[ids]

    def to_draft(self, ids: Tensor) -> Tensor:
        """Token ids of the base as draft ids, −100 where the draft vocabulary lacks them."""
        places = self.t2d.cumsum(0) - 1
        return torch.where(self.t2d[ids], places[ids], -100)

    def _at(self, base: Any) -> "Eagle3Draft":
        self.borrow(base)
        return self.to(device=base.device, dtype=base.dtype)  # a packed head's own weight is on no device
