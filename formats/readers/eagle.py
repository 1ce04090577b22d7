"""EAGLE-1 as in vLLM's EagleLlamaForCausalLM and SGLang's LlamaForCausalLMEagle, and the base class of EAGLE-3.

Both servers: x = fc([embedding, feature]); layer 0 without input norm; the features are hidden + residual, without a
last norm; logits by the target's head.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from formats.checkpoint import CheckpointFiles
from formats.readers.llama import attention, mlp, norm
from formats.readers.weights import Weights, open_export

Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class LlamaDraft:
    """Llama layers over features. `layer_inputs`: the base model's layers (0-based) whose *inputs* the server passes to
    the draft, in this order."""

    config: Mapping[str, Any]
    weights: Weights
    layer_inputs: tuple[int, ...]
    target_ids: torch.Tensor
    own_embeddings: bool
    """Whether the server uses embeddings in the file; else it always uses the target's."""

    def embed(self, ids: torch.Tensor, target: Head) -> torch.Tensor:
        """Embeddings [n, H] of token ids [n]; `target` computes the target's."""
        if self.own_embeddings and "embed_tokens.weight" in self.weights:
            return F.embedding(ids, self.weights["embed_tokens.weight"])
        return target(ids)

    def layer(self, x: torch.Tensor, residual: torch.Tensor, prefix: str) -> torch.Tensor:
        """Attention and MLP of a layer, each added to the residual. The caller applies the input norms."""
        w = self.weights
        residual = residual + attention(x, w, f"{prefix}self_attn.", self.config)
        x = norm(residual, w[f"{prefix}post_attention_layernorm.weight"], self.config["rms_norm_eps"])
        return residual + mlp(x, w, f"{prefix}mlp.")

    def check_untied(self) -> None:
        """Raise ValueError if the server would use the embeddings as the draft's lm_head."""
        if self.config.get("tie_word_embeddings"):
            raise ValueError(
                "config.json: tie_word_embeddings is true: the server would use the embeddings as the lm_head."
            )


@dataclass
class Eagle(LlamaDraft):
    """The network of EAGLE-1."""

    bias: bool
    """Whether the server's `fc` has a bias."""

    def fuse(self, hidden: torch.Tensor, inputs: torch.Tensor | None) -> torch.Tensor:
        """The base model's last hidden states [n, H], unchanged."""
        return hidden

    def step(self, features: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Features [n, H] and the embeddings [n, H] of the next tokens → features [n, H]."""
        eps, bias = self.config["rms_norm_eps"], self.weights["fc.bias"] if self.bias else None
        x = self.weights.linear(torch.cat([embedded, features], -1), "fc.weight", bias)
        for index in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{index}."
            normed = norm(x, self.weights[f"{prefix}input_layernorm.weight"], eps) if index else x
            x = self.layer(normed, x, prefix)
        return x

    def logits(self, features: torch.Tensor, head: Head) -> torch.Tensor:
        """[n, H] → [n, V]."""
        self.check_untied()
        return head(features)


def vllm(folder: Path, checkpoint: CheckpointFiles) -> Eagle:
    """LlamaModel.fc has no bias; embeddings in the file are used."""
    return _eagle(folder, own_embeddings=True, bias=False)


def sglang(folder: Path, checkpoint: CheckpointFiles) -> Eagle:
    """LlamaModel.fc has a bias; embeddings are the target's."""
    return _eagle(folder, own_embeddings=False, bias=True)


def _eagle(folder: Path, own_embeddings: bool, bias: bool) -> Eagle:
    config, weights = open_export(folder)
    return Eagle(config, weights, (), torch.arange(config["vocab_size"]), own_embeddings, bias)
