"""A base without its decoder layers: embeddings, final norm, LM head, config and tokenizer. Training needs no more when
another process computes the hidden states. Loaded from the same folder as the whole base."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.base import LoadedBase, load_parts, wrap_model
from models.damage import UNSAVED, BaseChecksums
from models.dequantize import drop_quantization
from speculoos.checksums import ChecksumCache
from speculoos.errors import Unsupported

HiddenStatesFunction = Callable[
    [torch.Tensor, torch.Tensor | None, Sequence[int]], tuple[torch.Tensor, tuple[torch.Tensor, ...]]
]
"""(input_ids [B, N], lengths [B] or None, layers) → result of `LoadedBase.forward_hidden`."""


@dataclass(eq=False)
class HeadOnlyBase(LoadedBase):
    """The parts of a base that drafts use, and a function for its hidden states. `load_head_only_base` makes one."""

    full_config: Any = None
    compute_hidden: HiddenStatesFunction | None = None
    """Computes hidden states; set by `training.hidden_states`."""

    @property
    def config(self) -> Any:
        return self.full_config

    @property
    def num_layers(self) -> int:
        return self.full_config.get_text_config().num_hidden_layers

    def forward_hidden(
        self, input_ids: torch.Tensor, layers: Sequence[int] = (), lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """As `LoadedBase.forward_hidden`; zeros after the end of a row."""
        if self.compute_hidden is None:
            raise Unsupported(f"{self.path}: the layers of this base are not loaded, so it cannot be run.")
        return self.compute_hidden(input_ids, lengths, layers)


def load_head_only_base(
    path: str | Path,
    dtype: str = "float32",
    device: str = "cpu",
    known: BaseChecksums | None = None,
    checksum_cache: ChecksumCache = UNSAVED,
) -> HeadOnlyBase:
    """As `models.base.load_base`, without decoder layers."""
    configs: list[Any] = []

    def shallow(config: Any) -> Any:
        drop_quantization(config)
        configs.append(config)
        return shallow_config(config)

    base = wrap_model(*load_parts(path, dtype, device, known, checksum_cache, shallow), Path(path))
    return HeadOnlyBase(
        base.model, base.tokenizer, base.path, base.dtype, base.device, base.eos_ids, full_config=configs[0]
    )


def shallow_config(config: Any, layers: Sequence[int] = ()) -> Any:
    """A copy of a transformers config with only the layers with these indices."""
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    text.num_hidden_layers = len(layers)
    if types := getattr(text, "layer_types", None):
        text.layer_types = [types[i] for i in layers]
    return shallow
