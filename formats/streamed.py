"""Networks that hold no weights: each layer's are read from the file when it runs and dropped after it. What proves a
large export with the memory of its largest tensor; slow, and right for a few forwards.
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

Named = Callable[[str], torch.Tensor]


def draft(folder: Path, base: Any) -> Any:
    """The draft of a checkpoint in float32 beside a base in float32; loaded whole where it is small."""
    if (folder / WEIGHTS).stat().st_size <= KEPT:
        return load_draft(folder, base)
    config = read_config(folder)
    if config["speculoos_method"] == "draft":
        return _Standalone(model(folder))
    with torch.device("meta"):
        made = draft_class(config["speculoos_method"]).from_json(config, replace(base, device=torch.device("meta")))
    weights = Weights(folder / WEIGHTS)
    for name, _ in [*made.named_buffers()]:
        owner, _, own = name.rpartition(".")
        if name in weights:
            setattr(made.get_submodule(owner), own, weights[name])
    return stream(made.eval().requires_grad_(False), weights.__getitem__)


def model(folder: Path) -> Any:
    """A causal model of transformers by its config.json and model.safetensors, in float32."""
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    with init_empty_weights(include_buffers=False):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        made = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    weights = Weights(folder / "model.safetensors")
    embedding = next(name for name, part in made.named_modules() if part is made.get_input_embeddings())

    def named(name: str) -> torch.Tensor:
        return weights[name if name in weights else f"{embedding}.weight"]  # a tied head is not stored

    return stream(made.eval().requires_grad_(False), named)


def stream(module: nn.Module, named: Named) -> Any:
    """`module`, whose parameters lie on the meta device, made to fetch each part's before that part runs."""
    for prefix, part in module.named_modules():
        if own := [name for name, _ in part.named_parameters(recurse=False)]:
            names = {name: f"{prefix}.{name}".removeprefix(".") for name in own}
            part.register_forward_pre_hook(partial(_fill, names, named))
            part.register_forward_hook(partial(_empty, {name: part._parameters[name] for name in own}))
    return module


def _fill(names: dict[str, str], named: Named, part: nn.Module, _args: Any) -> None:
    for name, stored in names.items():
        part._parameters[name] = nn.Parameter(named(stored), requires_grad=False)


def _empty(kept: dict[str, Any], part: nn.Module, _args: Any, _out: Any) -> None:
    part._parameters.update(kept)


class _Standalone:
    """What a standalone draft offers to a proof."""

    method = "draft"

    def __init__(self, streamed: Any):
        self.model = streamed
