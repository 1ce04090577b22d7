"""Memory of loaded models in bytes: all tensors reachable from them, each storage counted once.

The tensors are searched for, because packing, screening and caching models adds and removes some.
"""

from collections import defaultdict
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch

SEARCHED_MODULES = ("decoding.", "models.", "serving.", "torch.nn.", "transformers.")
"""Modules whose objects are searched for tensors."""


def held_bytes(*roots: Any) -> int:
    """Bytes of the storages of all tensors reachable from `roots`. Meta tensors count as 0."""
    views: defaultdict[Any, dict[tuple[int, int], int]] = defaultdict(dict)
    whole: dict[Any, int] = {}
    for tensor in tensors(*roots):
        if tensor.is_meta:
            continue
        if tensor.is_mkldnn:  # reordered weights, whose storage is not accessible
            whole[id(tensor)] = tensor.nbytes
            views[id(tensor)][0, 0] = tensor.nbytes
            continue
        storage = tensor.untyped_storage()
        whole[storage.data_ptr()] = storage.nbytes()
        views[storage.data_ptr()][tensor.storage_offset() * tensor.itemsize, tensor.nbytes] = tensor.nbytes
    return sum(min(whole[key], sum(parts.values())) for key, parts in views.items())


def tensors(*roots: Any) -> Iterator[torch.Tensor]:
    """Yield every tensor reachable from `roots` through containers, closures and objects of the modules above."""
    seen: dict[int, Any] = {}  # holds references, so that no id is reused
    stack = list(roots)
    while stack:
        node = stack.pop()
        if id(node) in seen:
            continue
        seen[id(node)] = node
        if isinstance(node, torch.Tensor):
            yield node
        else:
            stack += _children(node)


def _children(node: Any) -> list[Any]:
    if isinstance(node, dict):
        return list(node.values())
    if isinstance(node, list | tuple | set | frozenset):
        return [] if node and isinstance(next(iter(node)), int | str) else list(node)
    if isinstance(node, FunctionType):
        return [cell.cell_contents for cell in node.__closure__ or ()]
    if bound := getattr(node, "__self__", None):
        return [bound]
    kind = type(node)
    if not kind.__module__.startswith(SEARCHED_MODULES) or "okenizer" in kind.__name__:
        return []
    slots = [name for parent in kind.__mro__ for name in getattr(parent, "__slots__", ())]
    return [*vars(node).values()] if hasattr(node, "__dict__") else [getattr(node, n, None) for n in slots]


def cache_bytes(config: dict[str, Any], length: int, itemsize: int) -> int:
    """Bytes of a KV cache of `length` tokens, from a model's config.json; 0 if the config has no sizes."""
    config = config.get("text_config") or config
    layers, heads = config.get("num_hidden_layers"), config.get("num_attention_heads")
    dim = config.get("head_dim") or (config.get("hidden_size", 0) // heads if heads else 0)
    if not (layers and heads and dim):
        return 0
    kv_heads = config.get("num_key_value_heads") or heads
    return 2 * layers * kv_heads * dim * min(length, config.get("max_position_embeddings") or length) * itemsize
