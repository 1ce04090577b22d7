"""A standalone draft: a small model with the base's vocabulary (Leviathan et al. 2023)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.methods.record import BaseShape, DraftSize, Method
from models.methods.settings import TrainConfig, setting
from speculoos.errors import BadInput

PRUNED = "pruned"


class StandaloneSettings(TrainConfig):
    draft_num_layers: int = setting(4, "Decoder layers, spread evenly over the base's.", 1, 1000, label="Layers")
    draft_hidden_size: int = setting(0, "Hidden size; 0: the base's.", 0, 10**6, label="Hidden size")
    draft_intermediate_size: int = setting(
        0, "Width of the MLP; 0: the base's, in proportion to the hidden size.", 0, 10**7, label="Intermediate size"
    )
    draft_num_heads: int = setting(
        0, "Attention heads, of the base's head size; 0: in proportion to the hidden size.", 0, 10**4, label="Heads"
    )
    draft_num_kv_heads: int = setting(
        0, "Key-value heads; 0: as many heads share one as in the base.", 0, 10**4, label="Key-value heads"
    )
    draft_init: Literal["pruned", "random"] = setting(
        PRUNED, "pruned: the base's weights with the largest norms; random: fresh weights.", label="Initial weights"
    )
    draft_loss: Literal["ce", "kl", "reverse_kl", "tv"] = setting(
        "kl",
        "ce on the responses; kl (forward), reverse_kl or tv (total variation) to the base's probabilities.",
        label="Loss",
    )
    gradient_checkpointing: bool = setting(False, "Compute activations twice to save memory.")


@dataclass(frozen=True)
class StandaloneSizes:
    """Sizes of a standalone draft, or of its base; `intermediate_size` 0: not known."""

    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int


def standalone_sizes(config: Any, base: StandaloneSizes) -> StandaloneSizes:
    """Sizes of the draft that `config` describes for a base. Raises BadInput for inconsistent sizes, or sizes that
    pruning cannot reach."""
    if config.draft_num_layers > base.layers:
        raise BadInput(f"draft_num_layers: expected 1 to {base.layers} for this base, got {config.draft_num_layers}.")
    hidden = config.draft_hidden_size or base.hidden_size
    heads, kv_heads = _heads(config, hidden, base)
    if heads % kv_heads:
        raise BadInput(
            f"draft_num_heads: {heads} heads cannot share {kv_heads} key-value heads evenly; set a multiple of them."
        )
    if (hidden != base.hidden_size or heads != base.heads) and hidden % heads:
        raise BadInput(f"draft_hidden_size: {hidden} is not a multiple of the {heads} attention heads; set one.")
    inner = config.draft_intermediate_size or base.intermediate_size * hidden // base.hidden_size
    sizes = StandaloneSizes(config.draft_num_layers, hidden, inner, heads, kv_heads)
    if config.draft_init == PRUNED:
        limits = {
            "draft_hidden_size": (hidden, base.hidden_size),
            "draft_intermediate_size": (inner, base.intermediate_size or inner),
            "draft_num_kv_heads": (kv_heads, base.kv_heads),
            "draft_num_heads": (heads, kv_heads * (base.heads // base.kv_heads)),
        }
        for name, (size, limit) in limits.items():
            if size > limit:
                raise BadInput(
                    f"{name}: pruning this base gives at most {limit}, got {size}.",
                    "Choose a smaller size, or set draft_init to random.",
                )
    return sizes


def _heads(config: Any, hidden: int, base: StandaloneSizes) -> tuple[int, int]:
    """(heads, key-value heads). If neither is set: the largest proportional numbers that divide the hidden size."""
    heads, kv_heads, group = config.draft_num_heads, config.draft_num_kv_heads, base.heads // base.kv_heads
    if heads or kv_heads:
        return heads or kv_heads * group, kv_heads or max(heads // group, 1)
    if hidden == base.hidden_size:
        return base.heads, base.kv_heads
    limit = max(base.kv_heads * hidden // base.hidden_size, 1)
    kv_heads = next((n for n in range(limit, 0, -1) if hidden % (n * group) == 0), 1)
    return kv_heads * group, kv_heads


def check_card(card: Mapping[str, Any], config: Any) -> None:
    """Raise BadInput when the settings do not match the base with this card. With `draft_path` the sizes are
    those of the draft there."""
    names = ("layers", "hidden_size", "heads", "kv_heads")
    if not config.draft_path and all(card.get(name) for name in names):
        layers, hidden, heads, kv_heads = (int(card[name]) for name in names)
        standalone_sizes(config, StandaloneSizes(layers, hidden, 0, heads, kv_heads))


def size(base: BaseShape, config: Any) -> DraftSize:
    """Decoder layers of the base's proportions (with all experts, if it has some), embeddings and LM head."""
    width = config.draft_hidden_size or base.hidden
    share = width / base.hidden if base.hidden else 0.0
    shape = replace(
        base,
        hidden=width,
        feedforward_width=config.draft_intermediate_size or share * base.feedforward_width,
        query_width=share * base.query_width,
        key_width=share * base.key_width,
    )
    layers = config.draft_num_layers
    own_layers = (base.parameters - base.vocabulary_parameters) / base.layers if base.layers else 0.0
    per_layer = own_layers if shape == base and own_layers > 0 else shape.layer_parameters(width)
    parameters = layers * per_layer + shape.vocabulary_parameters
    # transformers keeps the products of the MLP, and its RMSNorm both of its own.
    layer = shape.layer_activations + 2 * shape.feedforward_width + 3 * width
    recomputed = config.gradient_checkpointing
    return DraftSize(
        parameters,
        parameters,
        activations=layers * (width if recomputed else layer) + 6 * width,
        working=layer + 0.5 * shape.feedforward_width if recomputed else 1.5 * shape.feedforward_width,
        logits=1.25 if config.draft_loss == "ce" else 6.0,
        frozen=0 if config.draft_loss == "ce" else base.hidden * base.vocabulary,
    )


METHOD = Method(
    name="draft",
    title="Standalone draft",
    noun="Standalone draft model",
    about="Standalone draft: a small model made of some of the base's layers. Needs no hidden states.",
    network="models.standalone:StandaloneDraft",
    trainer="training.standalone:StandaloneMethod",
    drafter="decoding.drafters.standalone",
    drafting=("depth", "tree", "sample"),
    config=StandaloneSettings,
    size=size,
    shares_hidden_size=False,
    check=check_card,
)
