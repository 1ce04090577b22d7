"""EAGLE-3 draft: one layer over fused low, middle and high hidden states (Li et al. 2025, EAGLE-3).

Offsets: at place t it reads the fused feature of t and token t+1 and predicts token t+2. Drafting on, its own output at
t stands for the feature of t+1, not fused again. It has its own head over a draft vocabulary: draft id i is token
i + d2t[i] of the base; t2d marks the tokens it has. Embeddings are the base's, frozen and not stored.

Drafts from elsewhere may have more: embeddings of their own (and then another width than the base), biases, further
layers, and EAGLE-3.1's norms: before `fc`, of all fused features together or of each, and of the output that is read as
the next feature. `norm_features_twice`: the norm of the embeddings goes over the features too, before their own, as in
the module that nvidia-modelopt trains since 0.41.
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
from models.eagle import BorrowedParts, EagleLayer, own_table

NORM_START = 0.3
"""Part of the base's last norm that a fresh draft starts with. At full size the logits of a draft that knows nothing
lie so far apart that the first loss is 20 nats instead of 10, and later steps pay for it (docs/log.md)."""


@dataclass(frozen=True)
class Eagle3Config(LayerShape):
    """Layer sizes, vocabulary and which base layers (0-based outputs) are fused. What follows `norm_before_residual`
    only drafts from elsewhere have; `target_hidden_size` 0: the base is as wide as the draft."""

    vocab_size: int = 0
    draft_vocab_size: int = 0
    aux_layers: tuple[int, ...] = ()
    norm_before_residual: bool = False
    eagle_num_layers: int = 1
    target_hidden_size: int = 0
    fc_bias: bool = False
    own_embeddings: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    norm_features_twice: bool = False
    lm_head_bias: bool = False


class Eagle3Layer(nn.Module):
    """Attention over [norm(embedding), norm(feature)] (2H wide), then the MLP; the residual is the feature."""

    def __init__(self, config: Eagle3Config):
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual, self.norm_features_twice = config.norm_before_residual, config.norm_features_twice
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.self_attn = Attention(config, 2 * hidden)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = SwiGLU(config)

    def forward(
        self, embedded: Tensor, features: Tensor, positions: Tensor, memory: Memory, places: Tensor | None = None
    ) -> Tensor:
        normed = self.hidden_norm(self.input_layernorm(features) if self.norm_features_twice else features)
        x = torch.cat([self.input_layernorm(embedded), normed], -1)
        residual = pick(normed if self.norm_before_residual else features, places)
        x = residual + self.self_attn(x, positions, memory, 0, places)
        return x + self.mlp(self.post_attention_layernorm(x))


class ScaledLinear(nn.Linear):
    """A linear layer that learns in units of its inputs: y = W·(s ∘ x) + b, kept in files as the plain W·s and b.

    Hidden states have a few channels hundreds of times larger than the rest; with one learning rate for all columns
    these would drown the others. s [in] is rounded to powers of two, so that folding and unfolding lose nothing.
    """

    def __init__(self, rms: Tensor, out_features: int, bias: bool = False):
        super().__init__(len(rms), out_features, bias=bias)
        self.register_buffer("scale", torch.exp2(-rms.clamp(min=1e-3).log2().round()), persistent=False)
        self.register_state_dict_post_hook(_fold)
        self.register_load_state_dict_pre_hook(_unfold)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.weight, self.bias)

    @property
    def plain_weight(self) -> Tensor:
        """The weight [out, in] for inputs as they are."""
        return self.weight * self.scale


def _fold(module: ScaledLinear, state: dict[str, Tensor], prefix: str, _metadata: Any) -> None:
    state[prefix + "weight"] = module.plain_weight.detach()


def _unfold(module: ScaledLinear, state: dict[str, Tensor], prefix: str, *_rest: Any) -> None:
    if (stored := state.get(prefix + "weight")) is not None:
        state[prefix + "weight"] = stored / module.scale.to(stored.device)


class Eagle3Draft(BorrowedParts):
    """The EAGLE-3 network, with the same face as EAGLE-1: `fuse`, `forward`, `logits`, `to_target`."""

    method: ClassVar[str] = "eagle3"

    def __init__(self, config: Eagle3Config):
        super().__init__()
        self.config = config
        hidden, eps, fused = config.hidden_size, config.rms_norm_eps, len(config.aux_layers)
        each = config.target_hidden_size or hidden
        self.embed_tokens = own_table(config)
        self.input_norm = nn.RMSNorm(fused * each, eps) if config.norm_before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList(nn.RMSNorm(each, eps) for _ in range(fused)) if config.fc_norm else None
        self.fc = nn.Linear(fused * each, hidden, bias=config.fc_bias)
        more = (EagleLayer(config, input_norm=True) for _ in range(1, config.eagle_num_layers))
        self.layers = nn.ModuleList([Eagle3Layer(config), *more])
        self.norm = nn.RMSNorm(hidden, eps)
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
        draft.scale_features(feature_rms)
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

    def scale_features(self, rms: Tensor | None) -> None:
        """Let `fc` learn in units of its inputs' size `rms` [3H]; what it computes stays the same. Normed inputs have
        one size already."""
        if rms is not None and not self.norms_features:
            fc = self.fc
            scaled = ScaledLinear(rms.float().cpu(), fc.out_features, bias=fc.bias is not None)
            scaled.to(fc.weight.device, fc.weight.dtype).load_state_dict(fc.state_dict())
            self.fc = scaled

    @property
    def norms_features(self) -> bool:
        """Whether features are normed before they are fused."""
        return self.config.norm_before_fc or self.config.fc_norm

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
        joined = torch.cat([a.to(self.fc.weight.dtype) for a in aux], -1)
        return self.fc(self.normed(joined) if self.norms_features else joined)

    def normed(self, joined: Tensor) -> Tensor:
        """Features side by side [..., 3H] with the norms before `fc`."""
        if self.fc_norm is None:
            return self.input_norm(joined)
        parts = joined.chunk(len(self.fc_norm), -1)
        return torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)

    def forward(
        self,
        features: Tensor,
        token_ids: Tensor,
        positions: Tensor,
        memory: Memory | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """features [B, n, H] at places t, token_ids [B, n] = tokens t+1, positions [B, n] = t → features [B, n, H].

        `memory`: what attention looks at besides these places, a ChainMemory while training; none for whole rows.
        `places` [B, m]: the features of these places only, [B, m, H]; the others are looked at, no more (a draft of
        one layer only).
        """
        embedded, memory = self.embed(token_ids).to(features.dtype), memory or Causal()
        x = self.layers[0](embedded, features, positions, memory, places)
        for i, layer in enumerate(self.layers[1:], 1):
            x = layer(x, positions, memory, i)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, features: Tensor) -> Tensor:
        """[…, H] → [..., draft_vocab_size]; `to_target` names the columns."""
        return self.lm_head(self.scored(features))

    def scored(self, features: Tensor) -> Tensor:
        """[…, H] → […, H]: what the head reads of the features that `forward` gives."""
        return features if self.config.norm_output else self.norm(features)

    def to_target(self, ids: Tensor) -> Tensor:
        """Draft ids as token ids of the base."""
        return ids + self.d2t[ids]

    def to_draft(self, ids: Tensor) -> Tensor:
        """Token ids of the base as draft ids, −100 where the draft vocabulary lacks them."""
        places = torch.full(self.t2d.shape, -100, device=self.t2d.device)
        places[self.draft_ids] = torch.arange(len(self.d2t), device=self.t2d.device)
        return places[ids]
