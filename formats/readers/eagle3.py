"""EAGLE-3 as five servers run it. All: h = fc(three hidden states); residual h; attention over [norm(embedding),
norm(h)]; the MLP; logits from norm(x), while x itself goes on. They differ in whether `norm_before_residual` is read,
how fused layers are counted, and when d2t is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from formats.checkpoint import CheckpointFiles
from formats.readers.eagle import Head, LlamaDraft
from formats.readers.llama import norm
from formats.readers.weights import Weights, opened

IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass
class Eagle3(LlamaDraft):
    """The network of EAGLE-3."""

    residual_after_norm: bool = False
    newer: bool = False
    """Whether the server reads EAGLE-3.1's options."""

    def fuse(self, hidden: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [n, 3H], side by side → [n, H]. `fc_norm` norms each, `norm_before_fc` all of them together."""
        w, eps, fused = self.weights, self.config["rms_norm_eps"], len(self.layer_inputs)
        if self.switch("fc_norm"):
            parts = enumerate(inputs.chunk(fused, -1))
            inputs = torch.cat([norm(part, w[f"fc_norm.{i}.weight"], eps) for i, part in parts], -1)
        elif self.switch("norm_before_fc"):
            inputs = norm(inputs, w["input_norm.weight"], eps)
        return w.linear(inputs, "fc.weight")

    def switch(self, name: str) -> bool:
        """An option of EAGLE-3.1, where this server reads it."""
        return self.newer and bool(self.config.get(name))

    def step(self, features: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Features [n, H] with embeddings [n, H] of the tokens after them → features [n, H], before the last norm
        unless `norm_output` is on. Layers after the first are plain ones."""
        w, eps, prefix = self.weights, self.config["rms_norm_eps"], "layers.0."
        normed = norm(features, w[f"{prefix}hidden_norm.weight"], eps)
        residual = normed if self.residual_after_norm else features
        both = torch.cat([norm(embedded, w[f"{prefix}input_layernorm.weight"], eps), normed], -1)
        x = self.layer(both, residual, prefix)
        for index in range(1, self.config["num_hidden_layers"]):
            prefix = f"layers.{index}."
            x = self.layer(norm(x, w[f"{prefix}input_layernorm.weight"], eps), x, prefix)
        return self._normed(x) if self.switch("norm_output") else x

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return norm(x, self.weights["norm.weight"], self.config["rms_norm_eps"])

    def logits(self, features: torch.Tensor, head: Head) -> torch.Tensor:
        """[n, H] → [n, V'], by the draft's own head unless the config ties it to the embeddings."""
        self.check_untied()
        return self.weights.linear(features if self.switch("norm_output") else self._normed(features), "lm_head.weight")


def vllm(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """Layer ids are handed to the target unchanged: inputs of these layers. t2d is skipped."""
    config, weights = opened(folder)
    ids = config.get(IDS) or config.get("eagle_config", {}).get(IDS) or _usual(checkpoint)
    targets = _targets(config, weights, "t2d")
    return Eagle3(config, weights, tuple(ids), targets, True, config.get("norm_before_residual", False), True)


def speculators(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """d2t and t2d are buffers where draft_vocab_size differs from the layer's vocab_size; layer ids as in vLLM."""
    config, weights = opened(folder)
    options = {name: config[name] for name in ("draft_vocab_size", "norm_before_fc", "fc_norm", "norm_output")}
    layer = {**config["transformer_layer_config"], **options}
    ids = config.get(IDS) or _usual(checkpoint)
    targets = _targets(layer, weights, "t2d")
    if "t2d" in weights and not torch.equal(weights["t2d"].nonzero().flatten(), targets.sort().values):
        raise ValueError("model.safetensors: t2d and d2t name different tokens.")
    return Eagle3(layer, weights, tuple(ids), targets, True, config["norm_before_residual"], True)


def sglang(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """set_eagle3_layers_to_capture adds one to the ids of eagle_config; hot_token_id = d2t + arange."""
    config, weights = opened(folder)
    outputs = config.get("eagle_config", {}).get(IDS)
    ids = [layer + 1 for layer in outputs] if outputs else _usual(checkpoint)
    return Eagle3(config, weights, tuple(ids), _targets(config, weights, "t2d"), False, newer=True)


def trtllm(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """Layers are captured by their outputs, as the YAML says (our README writes the checkpoint's). d2t is a parameter
    only where draft_vocab_size differs from vocab_size."""
    config, weights = opened(folder)
    ids = tuple(layer + 1 for layer in sorted(checkpoint.aux_layers))
    return Eagle3(config, weights, ids, _targets(config, weights), False)


def modelopt(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """Outputs of these layers; d2t where the vocabulary is smaller."""
    return sglang(folder, checkpoint)


def _usual(checkpoint: CheckpointFiles) -> tuple[int, int, int]:
    """get_eagle3_aux_hidden_state_layers of the targets: inputs of these layers."""
    n = checkpoint.base_layers
    return (2, n // 2, n - 3)


def _targets(config: Mapping[str, Any], weights: Weights, *skipped: str) -> torch.Tensor:
    """Token of the base for every column; `skipped` are names that the loader passes over."""
    weights.used.update(name for name in skipped if name in weights)
    columns = torch.arange(config.get("draft_vocab_size") or config["vocab_size"])
    if len(columns) == config["vocab_size"]:
        return columns
    return columns + weights["d2t"]
