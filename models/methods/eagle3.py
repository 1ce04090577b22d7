"""EAGLE-3 (Li et al. 2025)."""

from typing import Any

from models.methods.eagle import DRAFTING
from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import DraftVocabularyConfig, setting


class Eagle3Settings(DraftVocabularyConfig):
    ttt_steps: int = setting(
        3, "Training-time test: number of draft steps unrolled in training.", 1, 16, label="Unrolled steps"
    )
    ttt_decay: float = setting(
        0.8, "Factor between the weights of neighboring unrolled steps.", 0, 10, label="Decay per step"
    )
    norm_before_residual: bool = setting(False, "Take the residual after the hidden norm, as some EAGLE-3 heads do.")
    train_lm_head: bool = setting(
        True, "Train the draft's output matrix; false: faster.", label="Train the output matrix"
    )
    aux_layers: tuple[int, ...] = setting(
        (), "Fused base layers (0-based, outputs); empty: low, middle and high.", label="Fused layers"
    )


def size(base: BaseShape, config: Any) -> DraftSize:
    """A layer with a 2H-wide attention input, the 3H × H fusion and an output matrix, used in each unrolled step.
    Stores four hidden states of the base: the three fused layers and the last."""
    hidden, steps = base.hidden, config.ttt_steps
    output = hidden * (config.draft_vocab_size or base.vocabulary)
    parameters = base.layer_parameters(2 * hidden) + 3 * hidden * hidden + output
    # Besides the layer's: the embeddings, the concatenated input, the head's input and its gradient.
    per_step = base.layer_activations + 5 * hidden
    return DraftSize(
        parameters,
        parameters + output,
        steps,
        4,
        steps,
        activations=steps * per_step + 6 * hidden,
        norms=steps * 3 * hidden,
        working=3 * base.feedforward_width,
    )


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
