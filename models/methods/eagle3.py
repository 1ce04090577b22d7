"""EAGLE-3 (Li et al. 2025), with the norms of EAGLE-3.1 (arXiv:2605.09992) as options."""

from typing import Any, Literal

from pydantic import model_validator

from models.methods.eagle import DRAFTING
from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import AUX_LAYERS, DPACE_ALPHA, DraftVocabularyConfig, check_inputs, setting
from speculoos.errors import BadInput


class Eagle3Settings(DraftVocabularyConfig):
    ttt_steps: int = setting(
        3, "Training-time test: number of draft steps unrolled in training.", 1, 16, label="Unrolled steps"
    )
    ttt_decay: float = setting(
        0.8, "Factor between the weights of neighboring unrolled steps.", 0, 10, label="Decay per step"
    )
    ttt_loss: Literal["ce", "kl", "reverse_kl", "tv", "dpace"] = setting(
        "ce",
        "Distance from the base's probabilities: ce (cross-entropy), kl (forward), reverse_kl or tv (total variation); "
        "dpace: ce weighted by the draft's confidence, instead of the decay.",
        label="Loss",
    )
    dpace_alpha: float = DPACE_ALPHA
    norm_before_residual: bool = setting(False, "Take the residual after the hidden norm, as some EAGLE-3 heads do.")
    norm_before_fc: bool = setting(
        False, "EAGLE-3.1: normalize all fused features together.", label="Norm of all fused features"
    )
    fc_norm: bool = setting(
        False, "EAGLE-3.1: normalize the features of each fused layer by themselves.", label="Norm of each fused layer"
    )
    norm_output: bool = setting(
        False, "EAGLE-3.1: the next draft step reads the normed output.", label="Normed output as next feature"
    )
    train_lm_head: bool = setting(
        True, "Train the draft's output matrix; false: faster.", label="Train the output matrix"
    )
    aux_layers: tuple[int, ...] = AUX_LAYERS

    @model_validator(mode="after")
    def _one_norm(self) -> "Eagle3Settings":
        if self.norm_before_fc and self.fc_norm:
            raise BadInput("norm_before_fc, fc_norm: set only one of the two.")
        return self


def size(base: BaseShape, config: Any) -> DraftSize:
    """A layer with a 2H-wide attention input, the 3H × H fusion and an output matrix, used in each unrolled step.
    Stores four hidden states of the base: the three fused layers and the last."""
    hidden, steps = base.hidden, config.ttt_steps
    output = hidden * (config.draft_vocab_size or base.vocabulary)
    parameters = base.layer_parameters(2 * hidden) + 3 * hidden * hidden + output
    # Besides the layer's: the embeddings, the concatenated input, the head's input and its gradient.
    per_step = base.layer_activations + 5 * hidden
    fused = (9 if config.norm_before_fc or config.fc_norm else 6) * hidden
    return DraftSize(
        parameters,
        parameters + (2 if config.ttt_loss == "dpace" else 1) * output,
        steps,
        4,
        steps,
        activations=steps * per_step + fused,
        norms=steps * 3 * hidden,
        working=3 * base.feedforward_width,
        logits=4.0 if config.ttt_loss in ("ce", "dpace") else 7.0,
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
    check=check_inputs,
)
