"""EAGLE-3 draft: one layer over fused low, middle and high hidden states (Li et al. 2025, EAGLE-3).

Offsets: at position t it reads the fused feature of t and token t+1 and predicts token t+2. In later steps its own
output at t replaces the fused feature of t+1. It has its own head over a draft vocabulary: draft id i is token
i + d2t[i] of the base; t2d marks the tokens in it. Embeddings are the base's, frozen and not stored.

EAGLE-3.1 (arXiv:2605.09992) adds norms: before `fc`, of all fused features together (`norm_before_fc`) or of each
layer's (`fc_norm`), and of the output that is the next feature (`norm_output`).

Imported drafts may also have their own embeddings (and then another width than the base), biases, and more layers.
`norm_features_twice`: the embedding norm is applied to the features too, before their own norm, as in nvidia-modelopt
since 0.41."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models.base import aux_layers
from models.draft_layers import (
    Attention,
    Backend,
    CausalBackend,
    LayerConfig,
    SwiGLU,
    base_layer_config,
    check_bounds,
    init_weights,
    start_norm,
    take_positions,
)
from models.eagle import EagleLayer, SharedBaseModules


@dataclass(frozen=True)
class Eagle3Config(LayerConfig):
    """Layer sizes, vocabulary and which base layers (0-based outputs) are fused. Fields after `norm_output` are for
    imported drafts only; `target_hidden_size` 0: the base has the hidden size of the draft."""

    vocab_size: int = 0
    draft_vocab_size: int = 0
    aux_layers: tuple[int, ...] = ()
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    eagle_num_layers: int = 1
    target_hidden_size: int = 0
    fc_bias: bool = False
    own_embeddings: bool = False
    norm_features_twice: bool = False
    lm_head_bias: bool = False


class Eagle3Layer(nn.Module):
    """Attention with the input [norm(embedding), norm(feature)] (2H), then the MLP; the residual is the feature."""

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
        self, embedded: Tensor, features: Tensor, positions: Tensor, backend: Backend, index: Tensor | None = None
    ) -> Tensor:
        normed = self.hidden_norm(self.input_layernorm(features) if self.norm_features_twice else features)
        x = torch.cat([self.input_layernorm(embedded), normed], -1)
        residual = take_positions(normed if self.norm_before_residual else features, index)
        x = residual + self.self_attn(x, positions, backend, 0, index)
        return x + self.mlp(self.post_attention_layernorm(x))


class ScaledLinear(nn.Linear):
    """A linear layer with scaled inputs: y = W·(s ∘ x) + b, saved as the plain weight W·s and b. A few channels of
    hidden states are hundreds of times larger than the rest and would dominate with one learning rate for all columns.
    s [in] is rounded to powers of two, so that folding and unfolding are exact."""

    def __init__(self, rms: Tensor, out_features: int, bias: bool = False):
        super().__init__(len(rms), out_features, bias=bias)
        self.register_buffer("scale", torch.exp2(-rms.clamp(min=1e-3).log2().round()), persistent=False)
        self.register_state_dict_post_hook(_fold)
        self.register_load_state_dict_pre_hook(_unfold)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x * self.scale, self.weight, self.bias)

    @property
    def plain_weight(self) -> Tensor:
        """The weight [out, in] for unscaled inputs."""
        return self.weight * self.scale


def _fold(module: ScaledLinear, state: dict[str, Tensor], prefix: str, _metadata: Any) -> None:
    state[prefix + "weight"] = module.plain_weight.detach()


def _unfold(module: ScaledLinear, state: dict[str, Tensor], prefix: str, *_rest: Any) -> None:
    if (stored := state.get(prefix + "weight")) is not None:
        state[prefix + "weight"] = stored / module.scale.to(stored.device)


class Eagle3Draft(SharedBaseModules):
    """The EAGLE-3 network, with the interface of EAGLE-1: `fuse`, `forward`, `logits`, `to_target`."""

    method: ClassVar[str] = "eagle3"
    _no_split_modules: ClassVar[list[str]] = ["Eagle3Layer", "EagleLayer"]

    def __init__(self, config: Eagle3Config):
        super().__init__(config)
        hidden, eps, fused = config.hidden_size, config.rms_norm_eps, len(config.aux_layers)
        each = config.target_hidden_size or hidden
        self.input_norm = nn.RMSNorm(fused * each, eps) if config.norm_before_fc else nn.Identity()
        self.fc_norm = nn.ModuleList(nn.RMSNorm(each, eps) for _ in range(fused)) if config.fc_norm else None
        self.fc = nn.Linear(fused * each, hidden, bias=config.fc_bias)
        more = (EagleLayer(config, input_norm=True) for _ in range(1, config.eagle_num_layers))
        self.layers = nn.ModuleList([Eagle3Layer(config), *more])
        self.norm = nn.RMSNorm(hidden, eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=config.lm_head_bias)
        self.register_buffer("t2d", torch.ones(config.vocab_size, dtype=torch.bool))

    @classmethod
    def from_base(
        cls, base: Any, draft_ids: Tensor | None = None, feature_rms: Tensor | None = None, **options: Any
    ) -> "Eagle3Draft":
        """A new draft; `draft_ids` (sorted token ids of the base) is its vocabulary, all tokens by default. Its head is
        a plain linear layer initialized with the base's rows of those tokens, times the base's logit scale, and the
        base's bias (a logit cap is left out, since inference servers have none for drafts); its final norm starts at
        NORM_START times the base's. `feature_rms` [3H] is the RMS of each fused channel (`scale_features`). `options`
        are fields of Eagle3Config."""
        ids = torch.arange(base.vocab_size) if draft_ids is None else draft_ids.cpu().long()
        options["aux_layers"] = tuple(options.get("aux_layers") or aux_layers(base.num_layers))
        head = base.head.rows(ids).folded()
        sizes = {"vocab_size": base.vocab_size, "draft_vocab_size": len(ids), "lm_head_bias": head.bias is not None}
        draft = cls(Eagle3Config(**{**asdict(base_layer_config(base)), **sizes, **options}))
        draft.scale_features(feature_rms)
        init_weights(draft)
        with torch.no_grad():
            draft.lm_head.weight.copy_(head.weight)
            if head.bias is not None:
                draft.lm_head.bias.copy_(head.bias)
            start_norm(draft.norm, base)
            draft.set_draft_ids(ids)
            draft.t2d.zero_()[ids] = True
        return draft.attach(base)

    @classmethod
    def from_json(cls, data: dict[str, Any], base: Any) -> "Eagle3Draft":
        values = {name: data[name] for name in Eagle3Config.__dataclass_fields__ if name in data}
        check_bounds(values, aux_layers=(0, base.num_layers - 1))
        values["aux_layers"] = tuple(values.get("aux_layers") or aux_layers(base.num_layers))
        return cls(Eagle3Config(**values)).attach(base)

    def scale_features(self, rms: Tensor | None) -> None:
        """Scale the inputs of `fc` by their `rms` [3H] during training without changing its output (ScaledLinear). Does
        nothing when features are normed."""
        if rms is not None and not self.norms_features:
            fc = self.fc
            scaled = ScaledLinear(rms.float().cpu(), fc.out_features, bias=fc.bias is not None)
            scaled.to(fc.weight.device, fc.weight.dtype).load_state_dict(fc.state_dict())
            self.fc = scaled

    @property
    def norms_features(self) -> bool:
        return self.config.norm_before_fc or self.config.fc_norm

    @property
    def layers_wanted(self) -> tuple[int, ...]:
        """Base layers (0-based) whose outputs `fuse` takes, in this order."""
        return self.config.aux_layers

    def fuse(self, hidden: Tensor, aux: tuple[Tensor, ...] = ()) -> Tensor:
        """Features [B, n, H] from the outputs of `layers_wanted`, each [B, n, H]; `hidden` is not used."""
        joined = torch.cat([a.to(self.fc.weight.dtype) for a in aux], -1)
        return self.fc(self.normed(joined) if self.norms_features else joined)

    def normed(self, joined: Tensor) -> Tensor:
        """Concatenated features [..., 3H] after the norms before `fc`."""
        if self.fc_norm is None:
            return self.input_norm(joined)
        parts = joined.chunk(len(self.fc_norm), -1)
        return torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)

    def forward(
        self,
        features: Tensor,
        token_ids: Tensor,
        positions: Tensor,
        backend: Backend | None = None,
        index: Tensor | None = None,
    ) -> Tensor:
        """features [B, n, H] at positions t, token_ids [B, n] = tokens t+1, positions [B, n] = t → features [B, n, H].
        `backend`: attention backend, a ChainBackend in training; default: causal over these positions. `index` [B, m]:
        return only the features at these positions, [B, m, H]; the others serve as keys only (drafts of one layer)."""
        embedded, backend = self.embed(token_ids).to(features.dtype), backend or CausalBackend()
        x = self.layers[0](embedded, features, positions, backend, index)
        for i, layer in enumerate(self.layers[1:], 1):
            x = layer(x, positions, backend, i)
        return self.norm(x) if self.config.norm_output else x

    def logits(self, features: Tensor) -> Tensor:
        """[..., H] → [..., draft_vocab_size]; `to_target` maps the columns."""
        return self.lm_head(self.lm_head_input(features))

    def lm_head_input(self, features: Tensor) -> Tensor:
        """[..., H] → [..., H]: input of the head, from the features that `forward` returns."""
        return features if self.config.norm_output else self.norm(features)
