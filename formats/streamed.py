"""Networks that hold no weights: each layer's are read from the file when it runs and dropped after it. What proves a
large export with little memory; slow, and right for a few forwards.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from formats.readers.weights import KEPT, Weights
from models.checkpoints import WEIGHTS, draft_class, load_draft, read_config
from models.standalone import StandaloneDraft


def draft(folder: Path, base: Any) -> Any:
    """The draft of a checkpoint in float32 beside a base in float32; loaded whole where it is small."""
    if (folder / WEIGHTS).stat().st_size <= KEPT:
        return load_draft(folder, base)
    config = read_config(folder)
    if config["speculoos_method"] == "draft":
        return StandaloneDraft(model(folder))
    with torch.device("meta"):
        network = draft_class(config["speculoos_method"]).from_json(config, replace(base, device=torch.device("meta")))
    weights = Weights(folder / WEIGHTS)
    for name, _ in [*network.named_buffers()]:
        owner, _, own = name.rpartition(".")
        if name in weights:
            setattr(network.get_submodule(owner), own, weights[name])
    return stream(network.eval().requires_grad_(False), weights)


def model(folder: Path) -> Any:
    """A causal model of transformers by its config.json and model.safetensors, in float32."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = Weights(folder / "model.safetensors")
    embedding = next(name for name, part in network.named_modules() if part is network.get_input_embeddings())
    return stream(
        network.eval().requires_grad_(False),
        weights,
        lambda name: name if name in weights else f"{embedding}.weight",  # a tied head is not stored
    )


def stream(module: nn.Module, weights: Weights, stored: Callable[[str], str] = str) -> Any:
    """`module`, whose parameters lie on the meta device, made to fetch each part's before that part runs; the matrices
    of linear layers pass some rows at a time, and of embeddings the rows that are asked for are read. `stored`: a
    parameter's name → the name it is stored under."""
    for prefix, part in module.named_modules():
        names = {name: stored(f"{prefix}.{name}") for name, _ in part.named_parameters(recurse=False)}
        if type(part) is nn.Linear:
            part.forward = partial(_linear, weights, names)
        elif type(part) is nn.Embedding and part.max_norm is None:
            part.forward = partial(weights.embedding, name=names["weight"])
        elif names:
            part.register_forward_pre_hook(partial(_fill, names, weights))
            part.register_forward_hook(partial(_empty, {name: part._parameters[name] for name in names}))
    return module


def _linear(weights: Weights, names: dict[str, str], x: torch.Tensor) -> torch.Tensor:
    return weights.linear(x, names["weight"], weights[names["bias"]] if "bias" in names else None)


def _fill(names: dict[str, str], weights: Weights, part: nn.Module, _args: Any) -> None:
    for name, stored in names.items():
        part._parameters[name] = nn.Parameter(weights[stored], requires_grad=False)


def _empty(parameters: dict[str, Any], part: nn.Module, _args: Any, _out: Any) -> None:
    part._parameters.update(parameters)
