"""Medusa heads as vLLM's Medusa and the Medusa repository, TGI and TensorRT-LLM run them: x + silu(Wx + b) for each
block, then the head's matrix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from formats.checkpoint import CheckpointFiles, read_object
from formats.readers.weights import Weights, opened, pieces


@dataclass
class Medusa:
    """Heads by the names of their tensors: `block` and `matrix` are patterns of head and layer."""

    weights: Weights
    heads: int
    layers: int
    block: str
    matrix: str
    target_ids: torch.Tensor
    biased: bool = True
    """Whether the server's blocks have a bias; else a stored one is passed over."""

    def logits(self, head: int, hidden: torch.Tensor) -> torch.Tensor:
        """The base's last hidden states [n, H] → [n, V'] of one head (0-based)."""
        x = hidden
        for layer in range(self.layers):
            name = self.block.format(head=head, layer=layer)
            bias = self.weights[f"{name}.bias"] if self.biased else None
            x = x + F.silu(self.weights.linear(x, f"{name}.weight", bias))
        return self.weights.linear(x, self.matrix.format(head=head, layers=self.layers))


def vllm(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """MedusaConfig takes any key with `num` and `heads`, or `num` and `layers`, in it for its own two, the last one
    wins; token_map counts where truncated_vocab_size is smaller. With `original_lm_head` lm_heads.0 serves all; without
    it every head is made over the whole vocabulary (0.29 to 0.32), whatever truncated_vocab_size says."""
    config, weights = opened(folder)
    heads = _last(config, "heads", 5)
    layers = _last(config, "layers", 1)
    vocabulary = config.get("vocab_size", 32001)
    columns = config.get("truncated_vocab_size") or vocabulary
    targets = weights["token_map"] if columns < vocabulary else torch.arange(vocabulary)
    biased = bool(config.get("medusa_fc_bias"))
    matrix = "lm_heads.0.weight" if config.get("original_lm_head") else "lm_heads.{head}.weight"
    if columns != vocabulary and not config.get("original_lm_head"):
        raise ValueError("config.json: truncated_vocab_size: vLLM loads heads of their own over all tokens only.")
    return Medusa(weights, heads, layers, "blocks.{head}.layers.{layer}", matrix, targets, biased)


def medusa(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """TGI: no `architectures`, `{h}.{l}.linear` and `{h}.{L}`; the repository: no `model_type`."""
    config = read_object(folder / "config.json")
    for key in ("architectures", "model_type"):
        if key in config:
            raise ValueError(f"config.json: {key} must not be there.")
    return _repository(config, folder, checkpoint)


def trtllm(folder: Path, checkpoint: CheckpointFiles) -> Medusa:
    """config.py's and model.py's numbers of heads are read by different names and must agree."""
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
    """The pickled state dict holds the same tensors, bit for bit."""
    if different := sorted(set(_pickled(path)) ^ weights.names):
        raise ValueError(f"{path.name}: {different[0]} is in one of the two files only.")
    for name in sorted(weights.names):
        if not _same(_pickled(path)[name], weights, name):
            raise ValueError(f"{path.name}: {name} differs from {weights.path.name}.")


def _pickled(path: Path) -> dict[str, torch.Tensor]:
    """Its tensors, mapped anew: what was read of a mapping counts as memory until the mapping goes."""
    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _same(value: torch.Tensor, weights: Weights, name: str) -> bool:
    """Whether a tensor equals the stored one, a piece at a time."""
    at = 0
    for piece in pieces(weights.path, name):
        rows = value[at : at + len(piece)] if piece.dim() else value
        at += rows.shape[0] if piece.dim() else 0
        if not torch.equal(rows, piece):
            return False
    return not value.dim() or at == len(value)


def _last(config: Mapping[str, Any], what: str, default: int) -> int:
    return [default, *(value for key, value in config.items() if "num" in key and what in key)][-1]
