"""P-EAGLE (Hui et al. 2026); options named as in speculators where it has them."""

from typing import Any

from models.methods.eagle import DRAFTING
from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import AUX_LAYERS, MASK_TOKEN_ID, DraftVocabularyConfig, check_inputs, setting


class PEagleSettings(DraftVocabularyConfig):
    num_depths: int = setting(4, "Tokens drafted in one forward.", 1, 16, label="Depths")
    eagle_num_layers: int = setting(1, "Decoder layers of the draft.", 1, 16)
    down_sample_ratio: float = setting(
        0.7, "Share of the positions of one depth that are trained at the next.", 0, 1, label="Share kept per depth"
    )
    down_sample_ratio_min: float = setting(
        0.2, "Minimum share of the positions trained at any depth.", 0, 1, label="Minimum share kept"
    )
    mask_token_id: int | None = MASK_TOKEN_ID
    aux_layers: tuple[int, ...] = AUX_LAYERS


def expansion(config: Any) -> float:
    """Positions of a training forward per token: one of depth 0 and the shares of the others."""
    shares = (max(config.down_sample_ratio**d, config.down_sample_ratio_min) for d in range(1, config.num_depths))
    return 1 + sum(shares)


def size(base: BaseShape, config: Any) -> DraftSize:
    """EAGLE-3's layer and output matrix, and more layers; one forward with several positions per token."""
    hidden, layers, positions = base.hidden, config.eagle_num_layers, expansion(config)
    output = hidden * (config.draft_vocab_size or base.vocabulary)
    parameters = base.layer_parameters(2 * hidden) + (layers - 1) * base.layer_parameters(hidden)
    parameters += 3 * hidden * hidden + 3 * hidden + output
    return DraftSize(
        parameters,
        positions * (parameters + output),
        features=4,
        passes_per_evaluation=max(round(config.num_depths / positions), 1),
        activations=positions * (layers * base.layer_activations + 5 * hidden) + 6 * hidden,
        norms=positions * layers * 3 * hidden,
        working=positions * 3 * base.feedforward_width,
    )


METHOD = Method(
    name="peagle",
    title="P-EAGLE",
    noun="P-EAGLE draft",
    about="P-EAGLE: EAGLE-3 that drafts all tokens in one forward. Faster drafts, fewer of them accepted.",
    network="models.peagle:PEagleDraft",
    trainer="training.peagle:PEagleMethod",
    drafter="decoding.drafters.peagle",
    drafting=DRAFTING,
    config=PEagleSettings,
    size=size,
    starts_from=("eagle3",),
    check=check_inputs,
)
