"""EAGLE-1 as vLLM's EagleLlamaForCausalLM and SGLang's LlamaForCausalLMEagle run it.

Both: x = fc([embedding, feature]); layer 0 without input norm; the features are hidden + residual, without a last norm;
logits by the target's head.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from formats.checkpoint import Checkpoint, read_object
from formats.readers.llama import attention, mlp, norm
from formats.readers.weights import Weights

Head = Callable[[torch.Tensor], torch.Tensor]


class Eagle:
    """The network; `bias`: the server's `fc` has one (SGLang)."""

    layer_inputs: tuple[int, ...] = ()

    def __init__(self, config: Mapping[str, Any], weights: Weights, bias: bool):
        self.config, self.weights, self.bias = config, weights, bias
        self.target_ids = torch.arange(config["vocab_size"])

    def fuse(self, hidden: torch.Tensor, inputs: torch.Tensor | None) -> torch.Tensor:
        """The base's last hidden states [n, H]; no inner ones."""
        return hidden

    def embed(self, ids: torch.Tensor, target: Head) -> torch.Tensor:
        """Embeddings [n, H] of tokens. vLLM keeps those of the file; SGLang sets the target's, whatever it holds."""
        if not self.bias and "embed_tokens.weight" in self.weights:
            return self.weights.embedding(ids, "embed_tokens.weight")
        return target(ids)

    def step(self, features: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Features [n, H] with the embeddings [n, H] of the tokens after them → features [n, H]."""
        eps, bias = self.config["rms_norm_eps"], self.weights["fc.bias"] if self.bias else None
        x = self.weights.linear(torch.cat([embedded, features], -1), "fc.weight", bias)
        residual = torch.zeros_like(x)
        for index in range(self.config["num_hidden_layers"]):
            prefix = f"layers.{index}."
            residual = x + residual
            x = norm(residual, self.weights[f"{prefix}input_layernorm.weight"], eps) if index else residual
            residual = residual + attention(x, self.weights, f"{prefix}self_attn.", self.config)
            x = norm(residual, self.weights[f"{prefix}post_attention_layernorm.weight"], eps)
            x = mlp(x, self.weights, f"{prefix}mlp.")
        return x + residual

    def logits(self, features: torch.Tensor, head: Head) -> torch.Tensor:
        """[n, H] → [n, V]. With config.tie_word_embeddings SGLang would multiply with the embeddings."""
        if self.config.get("tie_word_embeddings"):
            raise ValueError(
                "config.json: tie_word_embeddings is true: the server would take the embeddings for a head."
            )
        return head(features)


def vllm(folder: Path, checkpoint: Checkpoint) -> Eagle:
    """LlamaModel.fc has no bias."""
    return Eagle(read_object(folder / "config.json"), Weights(folder / "model.safetensors"), False)


def sglang(folder: Path, checkpoint: Checkpoint) -> Eagle:
    """LlamaModel.fc has one."""
    return Eagle(read_object(folder / "config.json"), Weights(folder / "model.safetensors"), True)
