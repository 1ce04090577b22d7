"""Description of a drafting method: names, settings, sizes, and the classes of its network, trainer and drafter. No
torch: classes are given as `module:Name` and imported when needed."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from models.methods.settings import TrainConfig

LOSS_CHUNK_FLOATS = {"cpu": 12 << 20, "cuda": 32 << 20}
"""Logits per chunk of a loss, by device. Fewer rows make the matrix products less efficient."""


@dataclass(frozen=True)
class BaseShape:
    """Sizes of a base, 0 if unknown. `query_width`, `key_width`: heads times head size. `feedforward_width`: of the
    MLP, or of the active experts."""

    hidden: float = 0.0
    vocabulary: int = 0
    parameters: float = 0.0
    layers: int = 0
    feedforward_width: float = 0.0
    query_width: float = 0.0
    key_width: float = 0.0
    tied: bool = False

    @classmethod
    def from_card(cls, card: Mapping[str, Any]) -> "BaseShape":
        """Sizes missing in cards of earlier versions are those of Llama 2: 8/3 · H wide MLPs, heads · size = H."""
        hidden, heads = card.get("hidden_size") or 0, card.get("heads") or 1
        head_size = card.get("head_dim") or hidden / heads
        return cls(
            hidden,
            card.get("vocabulary") or 0,
            card.get("parameters") or 0,
            card.get("layers") or 0,
            card.get("intermediate_size") or 8 / 3 * hidden,
            heads * head_size,
            (card.get("kv_heads") or heads) * head_size,
            bool(card.get("tied_embeddings")),
        )

    @property
    def vocabulary_parameters(self) -> float:
        """Weights of embeddings and LM head."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    def layer_parameters(self, input_width: float) -> float:
        """Weights of a decoder layer whose attention reads `input_width` channels."""
        attention = (self.query_width + 2 * self.key_width) * input_width + self.query_width * self.hidden
        return attention + 3 * self.hidden * self.feedforward_width

    @property
    def layer_activations(self) -> float:
        """Numbers per token that the backward of a layer of `models.draft_layers` needs: queries, keys, values and
        output of the attention; gate and up; the MLP's input, and the sums after attention and MLP."""
        return 2 * (self.query_width + self.key_width) + 2 * self.feedforward_width + 3 * self.hidden


@dataclass(frozen=True)
class DraftSize:
    """Cost of a draft, for estimates. `parameters`: trained; `active_parameters`: used per token and pass; passes of
    the network per training step and per evaluation; `features`: hidden states of the base stored per token.
    `activations`: numbers per token of a micro-batch that its backward needs, and on a CPU, where RMSNorm is not fused,
    `norms` more; `working`: numbers per token that a layer's backward allocates; `logits`: copies of a chunk of logits
    that the loss allocates; `frozen`: weights of the base that the training copies, in fp32."""

    parameters: float
    active_parameters: float
    passes_per_step: float = 1
    features: int = 1
    passes_per_evaluation: int = 1
    activations: float = 0.0
    norms: float = 0.0
    working: float = 0.0
    logits: float = 4.0
    frozen: float = 0.0


@dataclass(frozen=True)
class Method:
    """A drafting method. `docs/architecture.md` describes the interface of each part."""

    name: str
    """Used in files, rows and requests: `eagle3`."""
    title: str
    """Shown on pages: `EAGLE-3`."""
    noun: str
    """Name of a checkpoint of this method: `EAGLE-3 draft`."""
    about: str
    network: str
    trainer: str
    drafter: str
    """Module with `make(target, draft, options)` and `tuning(draft)` (decoding/drafters/)."""
    drafting: tuple[str, ...]
    config: type[TrainConfig]
    size: Callable[[BaseShape, Any], DraftSize]
    """(sizes of the base, settings) → cost of the draft."""
    shares_hidden_size: bool = True
    """Whether the draft has the hidden size of its base; false for a model that shares only the vocabulary."""
    starts_from: tuple[str, ...] = ()
    """Other methods with drafts that `draft_path` may name."""
    check: Callable[[Mapping[str, Any], Any], None] | None = None
    """(card of the base, settings): raises BadInput when they do not match."""

    def load(self, part: str) -> Any:
        """Import the class or module of `part`: network, trainer or drafter."""
        module, _, name = getattr(self, part).partition(":")
        imported = importlib.import_module(module)
        return getattr(imported, name) if name else imported
