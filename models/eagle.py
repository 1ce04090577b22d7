"""EAGLE-1 draft: one decoder layer that predicts the base's next final hidden states (Li et al. 2024, EAGLE).

Offsets: at position t the draft reads feature f[t] (the input of the base's lm_head) and token t+1, and outputs g[t] ≈
f[t+1], whose logits under the base's lm_head predict token t+2. In the next step g[t] replaces f[t+1], with draft token
t+2 at position t+1.
Embeddings and lm_head are the base's, frozen and not stored; an imported draft may have its own embeddings, also
frozen. `fc` has no bias unless imported, because inference servers handle it differently."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from models.draft_layers import Attention, Backend, CausalBackend, LayerConfig, SwiGLU, base_layer_config, init_weights
from models.draft_vocabulary import DraftVocabulary


@dataclass(frozen=True)
class EagleConfig(LayerConfig):
    """Layer sizes, ModelOpt's options, and options of imported drafts."""

    vocab_size: int = 0
    eagle_num_layers: int = 1
    use_input_layernorm_in_first_layer: bool = False
    use_last_layernorm: bool = False
    fc_bias: bool = False
    own_embeddings: bool = False


class EagleLayer(nn.Module):
    def __init__(self, config: LayerConfig, input_norm: bool):
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size)
        self.mlp = SwiGLU(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps) if input_norm else None
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x: Tensor, positions: Tensor, backend: Backend, layer: int) -> Tensor:
        normed = x if self.input_layernorm is None else self.input_layernorm(x)
        x = x + self.self_attn(normed, positions, backend, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class SharedBaseModules(DraftVocabulary):
    """Embeddings and LM head of the base, used but not stored. `embed_tokens`: the draft's own [V, H], or None."""

    runner: Any = None
    """The runner that owns this draft's packed weights, once created (`decoding.drafters.runners.runner_of`)."""

    def __init__(self, config: Any):
        super().__init__()
        self.config, self.embed_tokens = config, None
        self.add_draft_vocabulary(getattr(config, "draft_vocab_size", 0))
        if config.own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size).requires_grad_(False)

    def attach(self, base: Any) -> Self:
        """Attach to `base`, in its dtype and on its device."""
        self._base = (base,)  # in a tuple: not a submodule; the head is looked up at each use, it may be packed later
        return self.to(device=base.device, dtype=base.dtype)  # not the head's: a packed weight is a meta tensor

    def to_json(self) -> dict[str, Any]:
        return asdict(self.config)

    @property
    def table(self) -> Any:
        return self._base[0].embed_tokens if self.embed_tokens is None else self.embed_tokens

    def embed(self, token_ids: Tensor) -> Tensor:
        return self.table(token_ids).detach()

    def base_logits(self, x: Tensor) -> Tensor:
        """[..., H] → [..., V], with the base's LM head and logit rule."""
        base = self._base[0]
        if base.lm_head.weight.dtype == x.dtype:
            return base.logits(x)  # also works with a packed head, which has no plain weight
        return base.head.to(x.dtype)(x)


class EagleDraft(SharedBaseModules):
    """The EAGLE-1 network. `forward` returns features; `logits` turns features into logits."""

    method: ClassVar[str] = "eagle"
    _no_split_modules: ClassVar[list[str]] = ["EagleLayer"]
    layers_wanted: ClassVar[tuple[int, ...]] = ()

    def __init__(self, config: EagleConfig):
        super().__init__(config)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList(
            EagleLayer(config, i > 0 or config.use_input_layernorm_in_first_layer)
            for i in range(config.eagle_num_layers)
        )
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps) if config.use_last_layernorm else nn.Identity()

    @classmethod
    def from_base(cls, base: Any, **options: Any) -> "EagleDraft":
        """A new draft with the base's layer sizes; `options` are fields of EagleConfig."""
        draft = cls(EagleConfig(**{**asdict(base_layer_config(base)), "vocab_size": base.vocab_size, **options}))
        init_weights(draft)
        return draft.attach(base)

    @classmethod
    def from_json(cls, data: dict[str, Any], base: Any) -> "EagleDraft":
        config = EagleConfig(**{name: data[name] for name in EagleConfig.__dataclass_fields__ if name in data})
        return cls(config).attach(base)

    def fuse(self, hidden: Tensor, aux: tuple[Tensor, ...] = ()) -> Tensor:
        """Features [B, n, H] from the base's final hidden states; `aux` is not used."""
        return hidden

    def forward(self, features: Tensor, token_ids: Tensor, positions: Tensor, backend: Backend | None = None) -> Tensor:
        """features [B, n, H] at positions t, token_ids [B, n] = tokens t+1, positions [B, n] = t → features [B, n, H].
        `backend`: attention backend; default: causal over these positions."""
        x = self.fc(torch.cat([self.embed(token_ids).to(features.dtype), features], -1))
        backend = backend or CausalBackend()
        for i, layer in enumerate(self.layers):
            x = layer(x, positions, backend, i)
        return self.norm(x)

    def logits(self, features: Tensor) -> Tensor:
        """Features [..., H] → [..., V]."""
        return self.base_logits(features)
