"""EAGLE-1 (Li et al. 2024) with EAGLE-2's dynamic trees; options named as in ModelOpt."""

from typing import Any

from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import TrainConfig, setting

MEASURED_DEPTH = 4
"""Length of the chain by which training evaluates the draft."""
DRAFTING = ("tree", "depth", "top_k", "nodes", "sample")


class EagleSettings(TrainConfig):
    eagle_num_layers: int = setting(1, "Decoder layers of the draft.", 1, 16)
    use_input_layernorm_in_first_layer: bool = setting(False, "Normalize the first layer's input.")
    use_last_layernorm: bool = setting(False, "Normalize the draft's last feature.")
    eagle_feature_weight: float = setting(1.0, "Weight of the smooth-L1 loss on features.", 0, 1e6)
    eagle_token_weight: float = setting(0.1, "Weight of the soft cross-entropy on tokens.", 0, 1e6)
    eagle_noise: float = setting(0.1, "Width of the uniform noise on features, times 512 / length.", 0, 10)


def size(base: BaseShape, config: Any) -> DraftSize:
    """Decoder layers and the 2H × H input product; the base's LM head is used, not trained."""
    hidden, layers = base.hidden, config.eagle_num_layers
    parameters, head = layers * base.layer_parameters(hidden) + 2 * hidden * hidden, hidden * base.vocabulary
    return DraftSize(
        parameters,
        parameters + head,
        passes_per_evaluation=MEASURED_DEPTH,
        activations=layers * (base.layer_activations + hidden) + 5 * hidden,
        norms=layers * 2 * hidden,
        working=3 * base.feedforward_width,
        frozen=head,
    )


METHOD = Method(
    name="eagle",
    title="EAGLE-1",
    noun="EAGLE-1 draft",
    about="EAGLE-1: one decoder layer predicts the base's next hidden states. Higher acceptance than Medusa.",
    network="models.eagle:EagleDraft",
    trainer="training.eagle:EagleMethod",
    drafter="decoding.drafters.eagle",
    drafting=DRAFTING,
    config=EagleSettings,
    size=size,
)
