"""Scaled rotary frequencies (linear, Llama 3, YaRN), as computed by transformers."""

import json
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

SCALED = ("linear", "llama3", "yarn")
"""Scaling types that depend on the config only; others change with the sequence length."""


def frequencies(dim: int, theta: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """Inverse frequencies of each pair of channels, float32 [dim / 2], and the factor on cos and sin.

    `scaling` has `rope_type` (one of SCALED) and its parameters, named as in Hugging Face configs. Sources: Chen et al.
    2023 (linear), Peng et al. 2023 (YaRN), Llama 3.1's config.
    """
    return _computed(dim, theta, json.dumps(scaling, sort_keys=True))


@lru_cache
def _computed(dim: int, theta: float, scaling: str) -> tuple[Tensor, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {**json.loads(scaling), "rope_theta": theta}
    length = int(parameters.get("original_max_position_embeddings") or 2048)
    config = LlamaConfig(
        head_dim=dim, hidden_size=dim, num_attention_heads=1, rope_parameters=parameters, max_position_embeddings=length
    )
    inverse_frequencies, factor = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, torch.device("cpu"))
    return inverse_frequencies.float(), float(factor)
