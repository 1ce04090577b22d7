"""DFlash (Chen et al. 2026, arXiv 2602.06036): a block of masked tokens is filled in one forward.

Constants: z-lab's and SpecForge's drafts have 5 layers, 5 fused layers, blocks of 16 and 512 anchors; speculators 0.9
has 3 fused layers, gamma 4 and D-PACE of alpha 0.5. Two layers and blocks of 8 are for small bases on a CPU, where a
draft layer costs as much as one of the base and each masked position is computed; they are not tuned (docs/log.md)."""

from typing import Any, Literal

from pydantic import model_validator

from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import (
    AUX_LAYERS,
    DPACE_ALPHA,
    MASK_TOKEN_ID,
    MAX_BATCH_TOKENS,
    DraftVocabularyConfig,
    check_inputs,
    setting,
)
from speculoos.errors import BadInput

FUSED_LAYERS = 5


class DFlashSettings(DraftVocabularyConfig):
    dflash_num_layers: int = setting(2, "Decoder layers of the draft.", 1, 16, label="Layers")
    block_size: int = setting(
        8, "Tokens of a block: one known, the others drafted in one forward.", 2, 64, label="Block size"
    )
    dflash_loss: Literal["ce", "kl", "reverse_kl", "tv"] = setting(
        "ce",
        "ce on the responses; kl (forward), reverse_kl or tv (total variation) to the base's probabilities.",
        label="Loss",
    )
    position_weights: Literal["decay", "dpace"] = setting(
        "decay",
        "Weights of a block's positions k = 1, 2, …: exp(-(k - 1) / gamma), or dpace (by confidence; for ce).",
        label="Weights of positions",
    )
    position_gamma: float = setting(4.0, "Gamma of the decay; larger: slower.", 0.1, 1000, label="Gamma of the decay")
    dpace_alpha: float = DPACE_ALPHA
    max_anchors: int = setting(
        512, "Blocks per batch, at random positions of the responses.", 1, 10**6, label="Blocks per batch"
    )
    mask_token_id: int | None = MASK_TOKEN_ID
    aux_layers: tuple[int, ...] = AUX_LAYERS

    @model_validator(mode="after")
    def _dpace_needs_ce(self) -> "DFlashSettings":
        if self.position_weights == "dpace" and self.dflash_loss != "ce":
            raise BadInput(f"position_weights: dpace needs dflash_loss ce, got {self.dflash_loss}; choose decay.")
        return self


def fused_layers(num_layers: int, count: int = FUSED_LAYERS) -> tuple[int, ...]:
    """Ids (0-based) of `count` base layers, evenly spaced from 1 to n − 3, as z-lab chooses them: 1, 8, 14, 20, 27 of
    30; a single one is n / 2. A base with few layers has fewer."""
    if count == 1:
        return (num_layers // 2,)
    last = max(num_layers - 3, 0)
    first = min(1, last)
    spaced = (first + i * (last - first) / (count - 1) for i in range(count))
    return tuple(dict.fromkeys(map(round, spaced)))


def size(base: BaseShape, config: Any) -> DraftSize:
    """Decoder layers and the fusion. Blocks run through the layers, `blocks` positions of them for each token of a
    batch; of the other tokens only keys and values are computed. The base's LM head is used, not trained."""
    hidden, keys, layers = base.hidden, base.key_width, config.dflash_num_layers
    fused = len(config.aux_layers or fused_layers(base.layers))
    tokens = config.batch_tokens or MAX_BATCH_TOKENS
    blocks = min(config.max_anchors, tokens) * config.block_size / tokens
    head = hidden * (config.draft_vocab_size or base.vocabulary)
    parameters = layers * base.layer_parameters(hidden) + fused * hidden * hidden
    heads = base.query_width + keys  # normed
    per_position = base.layer_activations + hidden + heads
    return DraftSize(
        parameters,
        parameters + head,
        passes_per_step=blocks,
        features=fused + (config.dflash_loss != "ce"),
        passes_per_evaluation=config.block_size,
        activations=layers * (blocks * per_position + 4 * keys) + (2 * blocks + 3) * hidden,
        norms=layers * (blocks * (2 * hidden + heads) + keys) + (blocks + 1) * hidden,
        working=blocks * 3 * base.feedforward_width,
        frozen=head,
    )


METHOD = Method(
    name="dflash",
    title="DFlash",
    noun="DFlash draft",
    about="DFlash: fills a block of masked tokens in one forward over features of several base layers.",
    network="models.dflash:DFlashDraft",
    trainer="training.dflash:DFlashMethod",
    drafter="decoding.drafters.dflash",
    drafting=("depth", "tree", "sample"),
    config=DFlashSettings,
    size=size,
    check=check_inputs,
)
