"""EAGLE-3 (Li et al. 2025)."""

from typing import Any

from models.methods.eagle import DRAFTING
from models.methods.record import DraftSize, Method
from models.methods.settings import DraftVocabularyConfig, setting


class Eagle3Settings(DraftVocabularyConfig):
    ttt_steps: int = setting(
        3, "Training-time test: number of draft steps unrolled in training.", 1, 16, label="Unrolled steps"
    )
    ttt_decay: float = setting(
        0.8, "Factor between the weights of neighbouring unrolled steps.", 0, 10, label="Decay per step"
    )
    norm_before_residual: bool = setting(False, "Take the residual after the hidden norm, as some EAGLE-3 heads do.")
    train_lm_head: bool = setting(
        True, "Train the draft's output matrix; false: faster.", label="Train the output matrix"
    )
    aux_layers: tuple[int, ...] = setting(
        (), "Fused base layers (0-based, outputs); empty for low, middle and high.", label="Fused layers"
    )


def size(hidden: float, vocabulary: int, config: Any) -> DraftSize:
    """A layer of 12 · H² with a 2H-wide attention input, the 3H × H fusion and an output matrix, used in each unrolled
    step. Stores four hidden states of the base: the three fused layers and the last."""
    output = hidden * (config.draft_vocab_size or vocabulary)
    parameters = 19 * hidden * hidden + output
    return DraftSize(parameters, parameters + output, config.ttt_steps, 4, config.ttt_steps)


METHOD = Method(
    name="eagle3",
    title="EAGLE-3",
    noun="EAGLE-3 draft",
    about="EAGLE-3: fuses features of several base layers, trained on its own outputs. Best acceptance, slowest.",
    network="models.eagle3:Eagle3Draft",
    trainer="training.eagle3:Eagle3Method",
    drafter="decoding.drafters.eagle",
    drafting=DRAFTING,
    config=Eagle3Settings,
    size=size,
)
