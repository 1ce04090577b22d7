"""EAGLE-3 as in five servers. All of them: h = fc(three hidden states); residual h; attention over [norm(embedding),
norm(h)]; the MLP; logits from norm(x), while x is the feature of the next step. They differ in whether
`norm_before_residual` is read, how fused layers are counted, and when d2t is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from formats.checkpoint import CheckpointFiles
from formats.readers.eagle import Head, LlamaDraft
from formats.readers.llama import norm
from formats.readers.weights import Weights, open_export

IDS = "eagle_aux_hidden_state_layer_ids"


@dataclass
class Eagle3(LlamaDraft):
    """The network of EAGLE-3."""

    residual_after_norm: bool = False
    eagle31: bool = False
    """Whether the server reads EAGLE-3.1's options."""

    def fuse(self, hidden: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        """Concatenated inputs [n, 3H] → [n, H]. `fc_norm` norms each of them, `norm_before_fc` all together."""
        w, eps, fused = self.weights, self.config["rms_norm_eps"], len(self.layer_inputs)
        if self.option("fc_norm"):
            parts = enumerate(inputs.chunk(fused, -1))
            inputs = torch.cat([norm(part, w[f"fc_norm.{i}.weight"], eps) for i, part in parts], -1)
        elif self.option("norm_before_fc"):
            inputs = norm(inputs, w["input_norm.weight"], eps)
        return w.linear(inputs, "fc.weight")

    def option(self, name: str) -> bool:
        """The value of an EAGLE-3.1 option; False if this server does not read it."""
        return self.eagle31 and bool(self.config.get(name))

    def step(self, features: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Features [n, H] and embeddings [n, H] of the next tokens → features [n, H], before the last norm unless
        `norm_output` is set. Layers after the first are plain Llama layers."""
        w, eps, prefix = self.weights, self.config["rms_norm_eps"], "layers.0."
        normed = norm(features, w[f"{prefix}hidden_norm.weight"], eps)
        residual = normed if self.residual_after_norm else features
        both = torch.cat([norm(embedded, w[f"{prefix}input_layernorm.weight"], eps), normed], -1)
        x = self.layer(both, residual, prefix)
        for index in range(1, self.config["num_hidden_layers"]):
            prefix = f"layers.{index}."
            x = self.layer(norm(x, w[f"{prefix}input_layernorm.weight"], eps), x, prefix)
        return self._normed(x) if self.option("norm_output") else x

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return norm(x, self.weights["norm.weight"], self.config["rms_norm_eps"])

    def logits(self, features: torch.Tensor, head: Head) -> torch.Tensor:
        """[n, H] → [n, V'], by the draft's own lm_head."""
        self.check_untied()
        return self.weights.linear(features if self.option("norm_output") else self._normed(features), "lm_head.weight")


def vllm(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """Layer ids are passed to the target unchanged: inputs of these layers. t2d is ignored."""
    config, weights = open_export(folder)
    ids = config.get(IDS) or config.get("eagle_config", {}).get(IDS) or _default_layers(checkpoint)
    targets = _targets(config, weights, "t2d")
    return Eagle3(config, weights, tuple(ids), targets, True, config.get("norm_before_residual", False), True)


def speculators(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """d2t and t2d are buffers if draft_vocab_size differs from the layer's vocab_size; layer ids as in vLLM."""
    config, weights = open_export(folder)
    options = {name: config[name] for name in ("draft_vocab_size", "norm_before_fc", "fc_norm", "norm_output")}
    layer = {**config["transformer_layer_config"], **options}
    ids = config.get(IDS) or _default_layers(checkpoint)
    targets = _targets(layer, weights, "t2d")
    if "t2d" in weights and not torch.equal(weights["t2d"].nonzero().flatten(), targets.sort().values):
        raise ValueError("model.safetensors: t2d and d2t contain different tokens.")
    return Eagle3(layer, weights, tuple(ids), targets, True, config["norm_before_residual"], True)


def sglang(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """set_eagle3_layers_to_capture adds one to the ids of eagle_config; hot_token_id = d2t + arange."""
    config, weights = open_export(folder)
    outputs = config.get("eagle_config", {}).get(IDS)
    ids = [layer + 1 for layer in outputs] if outputs else _default_layers(checkpoint)
    return Eagle3(config, weights, tuple(ids), _targets(config, weights, "t2d"), False, eagle31=True)


def trtllm(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """Outputs of the layers in the YAML (the README writes the checkpoint's). d2t is a parameter only if
    draft_vocab_size differs from vocab_size."""
    config, weights = open_export(folder)
    ids = tuple(layer + 1 for layer in sorted(checkpoint.aux_layers))
    return Eagle3(config, weights, ids, _targets(config, weights), False)


def modelopt(folder: Path, checkpoint: CheckpointFiles) -> Eagle3:
    """Outputs of these layers; d2t if the vocabulary is smaller."""
    return sglang(folder, checkpoint)


def _default_layers(checkpoint: CheckpointFiles) -> tuple[int, int, int]:
    """The defaults of the targets' get_eagle3_aux_hidden_state_layers: inputs of these layers."""
    n = checkpoint.base_layers
    return (2, n // 2, n - 3)


def _targets(config: Mapping[str, Any], weights: Weights, *skipped: str) -> torch.Tensor:
    """Token id of the base model for every column; `skipped` are tensors that the loader ignores."""
    weights.used.update(name for name in skipped if name in weights)
    columns = torch.arange(config.get("draft_vocab_size") or config["vocab_size"])
    if len(columns) == config["vocab_size"]:
        return columns
    return columns + weights["d2t"]
