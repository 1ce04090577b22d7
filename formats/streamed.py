"""Networks that read each layer's weights from the file when the layer runs and release them afterwards. Used to
validate a large export with little memory; suitable for a few forwards only.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from formats.readers.weights import MAX_CACHED, Weights
from models.checkpoints import WEIGHTS, draft_class, load_draft, read_config
from models.standalone import StandaloneDraft


def streamed_draft(folder: Path, base: Any) -> Any:
    """The draft of a checkpoint in float32, for a base model in float32. A small draft is loaded as a whole."""
    if (folder / WEIGHTS).stat().st_size <= MAX_CACHED:
        return load_draft(folder, base)
    config = read_config(folder)
    if config["speculoos_method"] == "draft":
        return StandaloneDraft(streamed_model(folder))
    with torch.device("meta"):
        network = draft_class(config["speculoos_method"]).from_json(config, replace(base, device=torch.device("meta")))
    weights = Weights(folder / WEIGHTS)
    for name, _ in [*network.named_buffers()]:
        owner, _, attribute = name.rpartition(".")
        if name in weights:
            setattr(network.get_submodule(owner), attribute, weights[name])
    return stream(network.eval().requires_grad_(False), weights)


def streamed_model(folder: Path) -> Any:
    """A causal transformers model in float32, from its config.json and model.safetensors."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        network = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = Weights(folder / "model.safetensors")
    embedding = next(name for name, module in network.named_modules() if module is network.get_input_embeddings())
    return stream(
        network.eval().requires_grad_(False),
        weights,
        lambda name: name if name in weights else f"{embedding}.weight",  # a tied head is not stored
    )


def stream(module: nn.Module, weights: Weights, stored: Callable[[str], str] = str) -> Any:
    """Make `module`, whose parameters are on the meta device, read the parameters of each submodule before it runs.
    Matrices of linear layers are read a few rows at a time; of embeddings only the needed rows are read. `stored` maps
    a parameter's name to its name in the file."""
    for prefix, submodule in module.named_modules():
        names = {name: stored(f"{prefix}.{name}") for name, _ in submodule.named_parameters(recurse=False)}
        if type(submodule) is nn.Linear:
            submodule.forward = partial(_linear, weights, names)
        elif type(submodule) is nn.Embedding and submodule.max_norm is None:
            submodule.forward = partial(weights.embedding, name=names["weight"])
        elif names:
            submodule.register_forward_pre_hook(partial(_fill, names, weights))
            submodule.register_forward_hook(partial(_empty, {name: submodule._parameters[name] for name in names}))
    return module


def _linear(weights: Weights, names: dict[str, str], x: torch.Tensor) -> torch.Tensor:
    return weights.linear(x, names["weight"], weights[names["bias"]] if "bias" in names else None)


def _fill(names: dict[str, str], weights: Weights, module: nn.Module, _args: Any) -> None:
    for name, stored in names.items():
        module._parameters[name] = nn.Parameter(weights[stored], requires_grad=False)


def _empty(parameters: dict[str, Any], module: nn.Module, _args: Any, _out: Any) -> None:
    module._parameters.update(parameters)
