"""A standalone draft: a small model that shares the base's tokens (Leviathan et al. 2023)."""

from typing import Any, Literal

from methods.record import DraftSize, Method
from methods.settings import TrainConfig, setting


class StandaloneSettings(TrainConfig):
    draft_num_layers: int = setting(4, "Decoder layers kept from the base.", 1, 1000, label="Layers")
    draft_loss: Literal["ce", "kl", "reverse_kl"] = setting(
        "kl", "ce on the answers, kl (forward) or reverse_kl to the base's probabilities.", label="Loss"
    )
    gradient_checkpointing: bool = setting(False, "Compute activations twice to save memory.")


def size(hidden: float, vocabulary: int, config: Any) -> DraftSize:
    """Decoder layers of 12 · H², and the matrix of the vocabulary."""
    parameters = 12 * config.draft_num_layers * hidden * hidden + hidden * vocabulary
    return DraftSize(parameters, parameters)


METHOD = Method(
    name="draft",
    title="Standalone draft",
    noun="Standalone draft model",
    about="Standalone draft: a small model made of some of the base's layers. Works where features cannot be had.",
    network="models.standalone:StandaloneDraft",
    trainer="training.standalone:StandaloneMethod",
    drafter="decoding.drafters.standalone",
    drafting=("depth", "tree", "sample"),
    config=StandaloneSettings,
    size=size,
    shares_hidden_size=False,
)
