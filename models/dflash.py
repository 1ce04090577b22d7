"""DFlash draft: decoder layers fill a block of masked tokens in one forward (Chen et al. 2026, arXiv 2602.06036).

A block at position a has `block_size` inputs: the known token a (the anchor) and mask tokens at a+1 … a+block_size−1;
the output at a+k predicts token a+k, k = 1 … block_size−1. Attention within a block has no causal mask. Features of the
base's layers at positions 0 … a−1, fused once by `fc` and `hidden_norm`, are the context: each layer projects them to
keys and values at their positions, without queries. Embeddings and LM head are the base's, not stored; a draft with a
vocabulary of its own stores the head's rows of it, frozen (draft id i is token i + d2t[i]).

Names and shapes are those of z-lab/dflash and speculators (Qwen 3's layers: no biases, norms of queries and keys).
Shapes: N blocks of S tokens, B rows of L positions, H hidden size, k key heads, d head size."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from models.draft_layers import (
    Backend,
    LayerConfig,
    base_layer_config,
    check_bounds,
    init_weights,
    rotary,
    rotate,
    start_norm,
)
from models.eagle import EagleLayer, SharedBaseModules
from models.logits import Head
from models.mask_token import mask_token
from models.methods.dflash import fused_layers


@dataclass(frozen=True)
class DFlashConfig(LayerConfig):
    """Layer sizes, blocks, and which base layers (0-based outputs) are fused. `draft_vocab_size` 0: all tokens of the
    base. `own_embeddings` is always false: a draft with other embeddings than the base's is not imported."""

    vocab_size: int = 0
    dflash_num_layers: int = 1
    block_size: int = 8
    mask_token_id: int = 0
    aux_layers: tuple[int, ...] = ()
    draft_vocab_size: int = 0
    lm_head_bias: bool = False
    own_embeddings: bool = False


class ContextBackend(Backend, Protocol):
    """Attention of blocks over injected context and themselves."""

    def inject(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Set the context of a layer, keys and values [B, k, L, d], before its `attend`."""


class DFlashLayer(EagleLayer):
    """A decoder layer whose attention also reads injected context."""

    def __init__(self, config: LayerConfig):
        super().__init__(config, input_norm=True)

    def forward(
        self,
        x: Tensor,
        positions: Tensor,
        backend: ContextBackend,
        layer: int,
        context: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """x [N, S, H]. `context`: features [B, L, H] and their positions [B, L]; None: injected before."""
        if context is not None:
            backend.inject(layer, *self.context_rows(*context))
        return super().forward(x, positions, backend, layer)

    def context_rows(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, k, L, d] of the fused features [B, L, H]."""
        attention = self.self_attn
        dim = attention.config.head_dim
        keys, values = (
            linear(features).unflatten(-1, (-1, dim)).transpose(1, 2) for linear in (attention.k_proj, attention.v_proj)
        )
        return rotate(attention.k_norm(keys), *rotary(positions, attention.config, features.dtype)), values


class DFlashDraft(SharedBaseModules):
    """The DFlash network: `fuse` features, `forward` blocks, `logits` of their outputs."""

    method: ClassVar[str] = "dflash"
    _no_split_modules: ClassVar[list[str]] = ["DFlashLayer"]

    def __init__(self, config: DFlashConfig):
        super().__init__(config)
        hidden, eps, size = config.hidden_size, config.rms_norm_eps, config.draft_vocab_size
        self.fc = nn.Linear(len(config.aux_layers) * hidden, hidden, bias=False)
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.layers = nn.ModuleList(DFlashLayer(config) for _ in range(config.dflash_num_layers))
        self.norm = nn.RMSNorm(hidden, eps)
        self.lm_head = None
        if size:
            self.lm_head = nn.Linear(hidden, size, bias=config.lm_head_bias).requires_grad_(False)

    @classmethod
    def from_base(cls, base: Any, draft_ids: Tensor | None = None, **options: Any) -> "DFlashDraft":
        """A new draft with the base's layer sizes and, as all published drafts have, norms of queries and keys.
        `draft_ids`: ascending token ids of its vocabulary, all by default; `options` are fields of DFlashConfig."""
        options["aux_layers"] = tuple(options.get("aux_layers") or fused_layers(base.num_layers))
        if options.get("mask_token_id") is None:
            options["mask_token_id"] = mask_token(base)
        sizes = {"vocab_size": base.vocab_size, "qk_norm": True}
        if draft_ids is not None:
            sizes |= {"draft_vocab_size": len(draft_ids), "lm_head_bias": base.head.bias is not None}
        draft = cls(DFlashConfig(**{**asdict(base_layer_config(base)), **sizes, **options}))
        init_weights(draft)
        start_norm(draft.norm, base)
        if draft_ids is not None:
            rows = base.head.rows(draft_ids)
            draft.set_draft_ids(draft_ids)
            with torch.no_grad():
                draft.lm_head.weight.copy_(rows.weight)
                if rows.bias is not None:
                    draft.lm_head.bias.copy_(rows.bias)
        return draft.attach(base)

    @classmethod
    def from_json(cls, data: dict[str, Any], base: Any) -> "DFlashDraft":
        values = {name: data[name] for name in DFlashConfig.__dataclass_fields__ if name in data}
        check_bounds(
            values,
            aux_layers=(0, base.num_layers - 1),
            mask_token_id=(0, base.vocab_size - 1),
            block_size=(2, 64),
        )
        values["aux_layers"] = tuple(values.get("aux_layers") or fused_layers(base.num_layers))
        return cls(DFlashConfig(**values)).attach(base)

    @property
    def block_size(self) -> int:
        return self.config.block_size

    @property
    def layers_wanted(self) -> tuple[int, ...]:
        """Base layers (0-based) whose outputs `fuse` takes, in this order."""
        return self.config.aux_layers

    @property
    def head(self) -> Head:
        """Output matrix, bias and logit rule; of the whole vocabulary those of the base, which must not be packed."""
        base = self._base[0]
        return base.head if self.lm_head is None else Head(self.lm_head.weight, self.lm_head.bias, base.logit_rule)

    def fuse(self, aux: Tensor) -> Tensor:
        """Outputs of `layers_wanted`, joined [..., len · H] → context features [..., H]."""
        return self.hidden_norm(self.fc(aux.to(self.fc.weight.dtype)))

    def block_ids(self, anchors: Tensor) -> Tensor:
        """Known tokens [N] → input ids [N, S]."""
        masks = anchors.new_full((len(anchors), self.block_size - 1), self.config.mask_token_id)
        return torch.cat([anchors[:, None], masks], 1)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        backend: ContextBackend,
        context: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """token_ids, positions [N, S] → [N, S, H], the input of the head. `context`: see `DFlashLayer.forward`."""
        x = self.embed(token_ids).to(self.fc.weight.dtype)
        for i, layer in enumerate(self.layers):
            x = layer(x, positions, backend, i, context)
        return self.norm(x)

    def logits(self, x: Tensor) -> Tensor:
        """[..., H] → [..., columns]; `to_target` maps the columns."""
        return self.base_logits(x) if self.lm_head is None else self.head.to(x.dtype)(x)
