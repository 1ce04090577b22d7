"""Medusa heads as in vLLM, the Medusa repository, TGI and TensorRT-LLM: x + silu(Wx + b) for each block, then the
head's matrix."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from formats.checkpoint import CheckpointFiles, read_object
from formats.readers.weights import Weights, open_export


@dataclass
class Medusa:
    """Medusa heads. `block` and `matrix` are patterns of tensor names with head and layer."""

    weights: Weights
    heads: int
    layers: int
    block: str
    matrix: str
    target_ids: torch.Tensor
    biased: bool = True
    """Whether the server's blocks have a bias; else a stored bias is ignored."""

    def logits(self, head: int, hidden: torch.Tensor) -> torch.Tensor:
        """The base model's last hidden states [n, H] → [n, V'] of one head (0-based)."""
        x = hidden
        for layer in range(self.layers):
            name = self.block.format(head=head, layer=layer)
            bias = self.weights[f"{name}.bias"] if self.biased else None
            x = x + F.silu(self.weights.linear(x, f"{name}.weight", bias))
        return self.weights.linear(x, self.matrix.format(head=head, layers=self.layers))


def vllm(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """MedusaConfig reads the number of heads (layers) from the last key that contains `num` and `heads` (`layers`).
    token_map is used if truncated_vocab_size is smaller than vocab_size. With `original_lm_head` all heads share
    lm_heads.0; without it every head has the whole vocabulary (0.29 to 0.32), whatever truncated_vocab_size says."""
    config, weights = open_export(folder)
    heads = _last(config, "heads", 5)
    layers = _last(config, "layers", 1)
    vocabulary = config.get("vocab_size", 32001)
    columns = config.get("truncated_vocab_size") or vocabulary
    targets = weights["token_map"] if columns < vocabulary else torch.arange(vocabulary)
    biased = bool(config.get("medusa_fc_bias"))
    matrix = "lm_heads.0.weight" if config.get("original_lm_head") else "lm_heads.{head}.weight"
    if columns != vocabulary and not config.get("original_lm_head"):
        raise ValueError("config.json: truncated_vocab_size: vLLM loads separate heads with the whole vocabulary only.")
    return Medusa(weights, heads, layers, "blocks.{head}.layers.{layer}", matrix, targets, biased)


def medusa(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """TGI: no `architectures`, `{h}.{l}.linear` and `{h}.{L}`; the repository: no `model_type`."""
    config = read_object(folder / "config.json")
    for key in ("architectures", "model_type"):
        if key in config:
            raise ValueError(f"config.json: {key} must not be set.")
    return _repository(config, folder, checkpoint)


def trtllm(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """config.py and model.py read the number of heads from different keys, which must agree."""
    config = read_object(folder / "config.json")
    if config["num_medusa_heads"] != config["medusa_num_heads"]:
        raise ValueError("config.json: num_medusa_heads and medusa_num_heads differ.")
    return _repository(config, folder, checkpoint)


def _repository(config: Mapping[str, Any], folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    weights = Weights(folder / "medusa_lm_head.safetensors")
    _same_pickle(folder / "medusa_lm_head.pt", weights)
    heads, layers = config["medusa_num_heads"], config["medusa_num_layers"]
    targets = torch.arange(checkpoint.vocab_size)
    return Medusa(weights, heads, layers, "{head}.{layer}.linear", "{head}.{layers}.weight", targets)


def _same_pickle(path: Path, weights: Weights) -> None:
    """Raise ValueError unless the pickled state dict contains the same tensors, bit for bit."""
    pickled = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    if different := sorted(pickled.keys() ^ weights.tensors.keys()):
        raise ValueError(f"{path.name}: {different[0]} is in only one of {path.name} and {weights.path.name}.")
    for name, value in weights.tensors.items():
        if not torch.equal(pickled[name], value):
            raise ValueError(f"{path.name}: {name} differs from {weights.path.name}.")


def _last(config: Mapping[str, Any], word: str, default: int) -> int:
    return [default, *(value for key, value in config.items() if "num" in key and word in key)][-1]
