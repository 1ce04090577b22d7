"""Memory that a loaded model needs, computed from its files."""

from pathlib import Path
from typing import Any, NamedTuple

from models.identity import first_set, read_json, tensors
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
    layers = layer_count(read_json(Path(folder) / "config.json")) or gpus
    return size / gpus + size / layers


def cache_bytes(config: dict[str, Any], length: int, itemsize: int) -> int:
    """Bytes of a KV cache of `length` tokens, from a model's config.json; 0 if the config has no sizes."""
    config = config.get("text_config") or config
    longest = first_set(config, "max_position_embeddings", "n_positions") or length
    return cache_numbers(config) * min(length, longest) * itemsize


def cache_numbers(config: dict[str, Any]) -> int:
    """Numbers in a KV cache per token: 2 · layers · key-value heads · head size; 0 if the config has no sizes."""
    heads = first_set(config, "num_attention_heads", "n_head", "n_heads") or 1
    hidden = first_set(config, "hidden_size", "n_embd", "n_embed", "d_model") or 0
    width = (config.get("num_key_value_heads") or heads) * (config.get("head_dim") or hidden // heads)
    return 2 * layer_count(config) * width


def layer_count(config: dict[str, Any]) -> int:
    """Decoder layers by a model's config.json; 0 if it does not say."""
    config = config.get("text_config") or config
    return first_set(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers") or 0


def gigabytes(count: float) -> str:
    """`12.3 GB`."""
    return f"{count / 1e9:.1f} GB"
