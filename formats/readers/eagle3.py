"""EAGLE-3 as five servers run it. All: h = fc(three hidden states); residual h; attention over [norm(embedding),
norm(h)]; the MLP; logits from norm(x), while x itself goes on. They differ in whether `norm_before_residual` is read,
how fused layers are counted, and when d2t is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from formats.checkpoint import Checkpoint, read_object
from formats.readers.llama import attention, mlp, norm
from formats.readers.weights import Weights

Head = Callable[[torch.Tensor], torch.Tensor]
IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass
class Eagle3:
    """`layer_inputs`: the base's layers (0-based) whose *inputs* the server hands over, in this order."""

    config: Mapping[str, Any]
    weights: Weights
    layer_inputs: tuple[int, ...]
    target_ids: torch.Tensor
    residual_after_norm: bool = False

    def fuse(self, hidden: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [n, 3H], side by side → [n, H]."""
        return self.weights.linear(inputs, "fc.weight")

    def step(self, features: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Features [n, H] with embeddings [n, H] of the tokens after them → features [n, H], before the last norm."""
        w, eps, prefix = self.weights, self.config["rms_norm_eps"], "layers.0."
        normed = norm(features, w[f"{prefix}hidden_norm.weight"], eps)
        residual = normed if self.residual_after_norm else features
        both = torch.cat([norm(embedded, w[f"{prefix}input_layernorm.weight"], eps), normed], -1)
        residual = residual + attention(both, w, f"{prefix}self_attn.", self.config)
        x = norm(residual, w[f"{prefix}post_attention_layernorm.weight"], eps)
        return residual + mlp(x, w, f"{prefix}mlp.")

    def logits(self, features: torch.Tensor, head: Head) -> torch.Tensor:
        """[n, H] → [n, V'], by the draft's own head unless the config ties it to the embeddings."""
        if self.config.get("tie_word_embeddings"):
            raise ValueError(
                "config.json: tie_word_embeddings is true: the server would take the embeddings for a head."
            )
        normed = norm(features, self.weights["norm.weight"], self.config["rms_norm_eps"])
        return self.weights.linear(normed, "lm_head.weight")


def vllm(folder: Path, checkpoint: Checkpoint) -> Eagle3:
    """Layer ids are handed to the target unchanged: inputs of these layers. t2d is skipped."""
    config, weights = _opened(folder)
    ids = config.get(IDS) or config.get("eagle_config", {}).get(IDS) or _usual(checkpoint)
    return Eagle3(
        config, weights, tuple(ids), _targets(config, weights, "t2d"), config.get("norm_before_residual", False)
    )


def speculators(folder: Path, checkpoint: Checkpoint) -> Eagle3:
    """d2t and t2d are buffers where draft_vocab_size differs from the layer's vocab_size; layer ids as in vLLM."""
    config, weights = _opened(folder)
    layer = {**config["transformer_layer_config"], "draft_vocab_size": config["draft_vocab_size"]}
    ids = config.get(IDS) or _usual(checkpoint)
    targets = _targets(layer, weights, "t2d")
    if "t2d" in weights and not torch.equal(weights["t2d"].nonzero().flatten(), targets.sort().values):
        raise ValueError("model.safetensors: t2d and d2t name different tokens.")
    return Eagle3(layer, weights, tuple(ids), targets, config["norm_before_residual"])


def sglang(folder: Path, checkpoint: Checkpoint) -> Eagle3:
    """set_eagle3_layers_to_capture adds one to the ids of eagle_config; hot_token_id = d2t + arange."""
    config, weights = _opened(folder)
    outputs = config.get("eagle_config", {}).get(IDS)
    ids = [layer + 1 for layer in outputs] if outputs else _usual(checkpoint)
    return Eagle3(config, weights, tuple(ids), _targets(config, weights, "t2d"))


def trtllm(folder: Path, checkpoint: Checkpoint) -> Eagle3:
    """Layers are captured by their outputs, as the YAML says (our README writes the checkpoint's). d2t is a parameter
    only where draft_vocab_size differs from vocab_size."""
    config, weights = _opened(folder)
    ids = tuple(layer + 1 for layer in sorted(checkpoint.aux_layers))
    return Eagle3(config, weights, ids, _targets(config, weights))


def modelopt(folder: Path, checkpoint: Checkpoint) -> Eagle3:
    """Outputs of these layers; d2t where the vocabulary is smaller."""
    return sglang(folder, checkpoint)


def _opened(folder: Path) -> tuple[dict[str, Any], Weights]:
    return read_object(folder / "config.json"), Weights(folder / "model.safetensors")


def _usual(checkpoint: Checkpoint) -> tuple[int, int, int]:
    """get_eagle3_aux_hidden_state_layers of the targets: inputs of these layers."""
    n = checkpoint.base_layers
    return (2, n // 2, n - 3)


def _targets(config: Mapping[str, Any], weights: Weights, *skipped: str) -> torch.Tensor:
    """Token of the base for every column; `skipped` are names that the loader passes over."""
    weights.asked.update(name for name in skipped if name in weights)
    columns = torch.arange(config.get("draft_vocab_size") or config["vocab_size"])
    if len(columns) == config["vocab_size"]:
        return columns
    return columns + weights["d2t"]
