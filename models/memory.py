"""Memory that a loaded model needs, computed from its files."""

from pathlib import Path
from typing import Any, NamedTuple

from models.identity import read_json, tensors
from models.quantization import count_parameters
from speculoos.errors import BadInput, NotFound, Unavailable


class ModelBytes(NamedTuple):
    """Bytes of a model's weights and of its KV cache."""

    weights: int
    cache: int


def model_bytes(folder: str | Path, itemsize: int, tokens: int) -> ModelBytes:
    """Bytes of the model in `folder` with a KV cache of `tokens` tokens, in a dtype of `itemsize` bytes. Raises
    NotFound for a folder without weights, Unavailable if they cannot be read."""
    if not any(Path(folder).glob("*.safetensors")):
        raise NotFound(f"{folder} has no safetensors file any more; import the model again.")
    try:
        config = read_json(Path(folder) / "config.json")
        weights = count_parameters(tensors(folder), config) * itemsize
    except (BadInput, OSError) as error:  # the server's fault, not the client's
        raise Unavailable(f"{folder}: its weights cannot be read ({error}).") from None
    return ModelBytes(weights, cache_bytes(config, tokens, itemsize))


def divided_bytes(folder: str | Path, size: float, gpus: int) -> float:
    """Bytes on one GPU of a base of `size` bytes that is divided among several: its share, and up to a layer more
    (`models.placement.divide`)."""
    if gpus == 1:
        return size
    config = read_json(Path(folder) / "config.json")
    layers = (config.get("text_config") or config).get("num_hidden_layers") or gpus
    return size / gpus + size / layers


def cache_bytes(config: dict[str, Any], length: int, itemsize: int) -> int:
    """Bytes of a KV cache of `length` tokens, from a model's config.json; 0 if the config has no sizes."""
    config = config.get("text_config") or config
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    dim = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    if not (layers and heads and dim):
        return 0
    kv_heads = config.get("num_key_value_heads") or heads
    return 2 * layers * kv_heads * dim * min(length, config.get("max_position_embeddings") or length) * itemsize


def gigabytes(count: float) -> str:
    """`12.3 GB`."""
    return f"{count / 1e9:.1f} GB"
