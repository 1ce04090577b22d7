"""DFlash (Chen et al. 2026, arXiv 2602.06036): a block of masked tokens is filled in one forward.

Constants: z-lab's and SpecForge's drafts have 5 layers, 5 fused layers, blocks of 16 and 512 anchors; speculators 0.9
has the same, with gamma 4 and D-PACE of alpha 0.5. Fewer layers and blocks of 8 are for small bases on a CPU, where a
draft layer costs as much as one of the base, and few tokens beyond the fourth are accepted (docs/log.md)."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator

from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import DraftVocabularyConfig, setting
from speculoos.errors import BadInput

FUSED_LAYERS = 5


class DFlashSettings(DraftVocabularyConfig):
    dflash_num_layers: int = setting(2, "Decoder layers of the draft.", 1, 16, label="Layers")
    block_size: int = setting(
        8, "Tokens of a block: one known, the others drafted in one forward.", 2, 64, label="Block size"
    )
    dflash_loss: Literal["ce", "kl", "reverse_kl"] = setting(
        "ce", "ce on the responses, kl (forward) or reverse_kl to the base's probabilities.", label="Loss"
    )
    position_weights: Literal["decay", "dpace"] = setting(
        "decay",
        "Weights of a block's positions k = 1, 2, …: exp(-(k - 1) / gamma), or dpace (by confidence; for ce).",
        label="Weights of positions",
    )
    position_gamma: float = setting(4.0, "Gamma of the decay; larger: slower.", 0.1, 1000, label="Gamma of the decay")
    dpace_alpha: float = setting(0.5, "Smoothing of dpace; 1: no confidence.", 0.01, 1, label="Smoothing of D-PACE")
    max_anchors: int = setting(
        512, "Blocks per batch, at random positions of the responses.", 1, 10**6, label="Blocks per batch"
    )
    mask_token_id: int | None = setting(
        None, "Token that stands for unknown ones; empty: an unused or special one.", 0, 10**7, label="Mask token"
    )
    aux_layers: tuple[int, ...] = setting(
        (), "Fused base layers (0-based, outputs); empty: low, middle and high.", label="Fused layers"
    )

    @model_validator(mode="after")
    def _dpace_needs_ce(self) -> "DFlashSettings":
        if self.position_weights == "dpace" and self.dflash_loss != "ce":
            raise BadInput(f"position_weights: dpace needs dflash_loss ce, got {self.dflash_loss}; choose decay.")
        return self


def size(base: BaseShape, config: Any) -> DraftSize:
    """Decoder layers and the fusion, run once per step over all positions (keys and values of the fused features) and
    blocks; the base's LM head is used, not trained."""
    hidden, layers = base.hidden, config.dflash_num_layers
    fused = len(config.aux_layers) or FUSED_LAYERS
    head = hidden * (config.draft_vocab_size or base.vocabulary)
    parameters = layers * base.layer_parameters(hidden) + fused * hidden * hidden
    return DraftSize(
        parameters,
        parameters + head,
        features=fused + (config.dflash_loss != "ce"),
        passes_per_evaluation=config.block_size,
        activations=layers * (base.layer_activations + hidden) + (fused + 5) * hidden,
        norms=layers * 2 * hidden,
        working=3 * base.feedforward_width,
        frozen=head,
    )


def check(card: Mapping[str, Any], config: Any) -> None:
    """Raises BadInput for fused layers or a mask token that the base lacks."""
    layers, tokens = card.get("layers") or 0, card.get("vocabulary") or 0
    if layers and (invalid := [i for i in config.aux_layers if not 0 <= i < layers]):
        raise BadInput(f"aux_layers: this base has layers 0 to {layers - 1}, got {invalid[0]}.")
    if tokens and config.mask_token_id is not None and config.mask_token_id >= tokens:
        raise BadInput(f"mask_token_id: this base has {tokens} tokens, got {config.mask_token_id}.")


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
    check=check,
)
