"""Medusa heads (Cai et al. 2024); options named as in ModelOpt where it has them."""

from typing import Any, Literal

from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import DPACE_ALPHA, DraftVocabularyConfig, setting


class MedusaSettings(DraftVocabularyConfig):
    medusa_num_heads: int = setting(4, "Medusa heads: tokens predicted beyond the next one.", 1, 16, label="Heads")
    medusa_num_layers: int = setting(1, "Residual blocks in each head.", 0, 16, label="Blocks per head")
    medusa_tie_lm_head: bool = setting(
        False, "Heads share the base's frozen output matrix.", label="Share the base's output matrix"
    )
    medusa_loss: Literal["decayed", "sum", "dpace"] = setting(
        "decayed",
        "Weight of head i: coefficient · decay^i, 1 (sum), or by the confidence of all heads (dpace).",
        label="Loss",
    )
    dpace_alpha: float = DPACE_ALPHA
    medusa_coefficient: float = setting(
        0.2, "Weight of the first head's loss.", 0, 100, label="Weight of the first head"
    )
    medusa_decay: float = setting(
        0.8, "Factor between the weights of neighboring heads.", 0, 10, label="Decay per head"
    )


def size(base: BaseShape, config: Any) -> DraftSize:
    """Blocks of each head and, unless the base's is shared, an output matrix."""
    hidden, heads, layers = base.hidden, config.medusa_num_heads, config.medusa_num_layers
    output = hidden * (config.draft_vocab_size or base.vocabulary)
    blocks, matrices = heads * layers * (hidden * hidden + hidden), 0 if config.medusa_tie_lm_head else heads
    return DraftSize(
        blocks + matrices * output,
        blocks + heads * output + (output if matrices else 0),
        activations=(1 + heads * (2 * layers + 1)) * hidden,
        working=4 * hidden,
        logits=1.25,
        frozen=0 if matrices else output,
    )


METHOD = Method(
    name="medusa",
    title="Medusa",
    noun="Medusa heads",
    about="Medusa: several small heads predict the next tokens in parallel. The fastest to train.",
    network="models.medusa:MedusaHeads",
    trainer="training.medusa:MedusaMethod",
    drafter="decoding.drafters.medusa",
    drafting=("tree",),
    config=MedusaSettings,
    size=size,
)
