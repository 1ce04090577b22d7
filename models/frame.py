"""A base without its layers: embeddings, final norm, head, config and tokenizer, which is all of it that a training
needs where something else runs the base.

Read from the same folder and by the same rules as the base itself; what lies between embeddings and norm is not read.
"""

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from models.base import LoadedBase, load_parts, wrap_model
from models.damage import NO_SUMS, Known
from speculoos.errors import Unsupported
from speculoos.sums import ChecksumCache

Ask = Callable[[torch.Tensor, torch.Tensor | None, Sequence[int]], tuple[torch.Tensor, tuple[torch.Tensor, ...]]]
"""(input_ids [B, N], lengths [B] or None, layers) → what `LoadedBase.forward_hidden` gives."""


@dataclass(eq=False)
class HeadOnlyBase(LoadedBase):
    """What drafts borrow of a base, and a way to ask for its hidden states. `load_head_only_base` makes one."""

    whole_config: Any = None
    """Of the base with its layers."""
    ask: Ask | None = None
    """Who computes hidden states; set by who knows (`training.hidden_states`)."""

    @property
    def config(self) -> Any:
        return self.whole_config

    @property
    def num_layers(self) -> int:
        return self.whole_config.get_text_config().num_hidden_layers

    def forward_hidden(
        self, input_ids: torch.Tensor, layers: Sequence[int] = (), lengths: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """As `LoadedBase.forward_hidden`; zeros where a row has ended."""
        if self.ask is None:
            raise Unsupported(f"{self.path}: the layers of this base are not here, so it cannot be run.")
        return self.ask(input_ids, lengths, layers)


def load_head_only_base(
    path: str | Path,
    dtype: str = "float32",
    device: str = "cpu",
    known: Known | None = None,
    sums: ChecksumCache = NO_SUMS,
) -> HeadOnlyBase:
    """As `models.base.load_base`, without the layers."""
    wholes: list[Any] = []

    def shallow(config: Any) -> Any:
        wholes.append(config)
        return shallow_config(config)

    with _quiet():
        base = wrap_model(*load_parts(path, dtype, device, known, sums, shallow), Path(path))
    return HeadOnlyBase(
        base.model, base.tokenizer, base.path, base.dtype, base.device, base.eos_ids, whole_config=wholes[0]
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """transformers tells of every weight that has no place, and of plans without layers; here that is the point."""
    log = logging.getLogger("transformers")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


def shallow_config(config: Any, layers: Sequence[int] = ()) -> Any:
    """A copy of a config of transformers that describes the same model with some of its layers."""
    shallow = copy.deepcopy(config)
    text = shallow.get_text_config()
    text.num_hidden_layers = len(layers)
    if types := getattr(text, "layer_types", None):
        text.layer_types = [types[i] for i in layers]
    return shallow
