"""Why a checkpoint of some shape cannot go to a server: each function takes the server's name and a
Checkpoint and gives "" or one sentence. Each is about something that the server's source does not read; the server
would ignore it and draft garbage. No torch.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

from formats.checkpoint import CheckpointFiles
from models.identity import tensors
from speculoos.errors import SpeculoosError

Refusal = Callable[[CheckpointFiles], str]
Reason = Callable[[str, CheckpointFiles], str]
"""A refusal that is told which server's it is."""
LAYER = frozenset(
    {
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("rms_norm_eps", "rope_theta", "rope_scaling", "vocab_size", "eagle_num_layers"),
    }
)
EAGLE = LAYER
EAGLE3 = LAYER | {"draft_vocab_size", "aux_layers", "norm_before_residual"}
EAGLE31 = EAGLE3 | {"norm_before_fc", "fc_norm", "norm_output", "own_embeddings"}
MEDUSA = frozenset(
    {"hidden_size", "vocab_size", "medusa_num_heads", "medusa_num_layers", "medusa_tie_lm_head", "draft_vocab_size"}
)
PARTS = r"self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|hidden_norm|\w+_layernorm"
TENSORS = {
    "eagle": rf"fc\.(weight|bias)|embed_tokens\.weight|layers\.\d+\.({PARTS})\.weight",
    "eagle3": rf"((fc|norm|lm_head|input_norm|fc_norm\.\d+|embed_tokens)|layers\.\d+\.({PARTS}))\.weight|d2t|t2d",
    "medusa": r"blocks\.\d+\.\d+\.linear\.(weight|bias)|lm_heads\.\d+\.weight|d2t",
}
"""What the tensors of a draft that every server knows are called."""


def has_biased_head(base_tensors: Iterable[str]) -> bool:
    """Whether the base's output head adds a bias to its logits, as those of Phi-1, 1.5 and 2 do."""
    return any(name.endswith(("lm_head.bias", "embed_out.bias")) for name in base_tensors)


@lru_cache(maxsize=64)
def _is_biased(base_path: str) -> bool:
    """Of a base's folder. Kept, since the Train page asks at each change of its form; nothing is where files lack."""
    return has_biased_head(entry.name for entry in tensors(base_path))


def nowhere(method: str, base_path: str | Path) -> str:
    """Before a training: one sentence where no server will load such a draft of this base, else empty; empty too where
    the base's files are not here to be asked."""
    with suppress(SpeculoosError, OSError):
        if method in TENSORS and _is_biased(str(base_path)):
            return (
                "The output head of this base has a bias, which no server adds to the logits of such a draft: it can "
                "be used in Speculoos only. A standalone draft (method draft) can be served."
            )
    return ""


def of(server: str, *reasons: Reason) -> tuple[Refusal, ...]:
    """The reasons as refusals of one server's layout."""
    return tuple(partial(reason, server) for reason in reasons)


def only(known: frozenset[str]) -> Reason:
    """Nothing in the config, besides what is `known`, or among the tensors that the server has no place for."""

    def reason(server: str, checkpoint: CheckpointFiles) -> str:
        for key in checkpoint.unknown(known):
            return f"An export for {server} has no place for the draft's `{key}` ({checkpoint.config[key]!r})."
        for name in checkpoint.tensors:
            if not re.fullmatch(TENSORS[checkpoint.method], name):
                return f"An export for {server} has no place for the draft's tensor {name}."
        return ""

    return reason


def ascending_layers(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3: servers collect hidden states while the layers run, so in ascending order and each once."""
    ids = checkpoint.aux_layers
    if list(ids) != sorted(set(ids)) or min(ids) < 0:
        return (
            f"The draft fuses the base's layers {list(ids)}; {server} collects each layer once and in ascending "
            "order. Train with other aux_layers (small bases have no three layers by default)."
        )
    return ""


def three_layers(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3: `fc` of this server is three hidden states wide, whatever the config says."""
    count = len(checkpoint.aux_layers)
    return "" if count == 3 else f"The draft fuses {count} layers of the base; {server} always fuses three."


def one_layer(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3: further layers are vLLM's and speculators'; others call them otherwise, or norm their input."""
    count = checkpoint.config.get("eagle_num_layers", 1)
    return "" if count == 1 else f"The draft has {count} layers; for {server} only drafts of one are exported."


def residual_after_norm(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3: `norm_before_residual` is vLLM's and speculators' alone."""
    if not checkpoint.config.get("norm_before_residual"):
        return ""
    return (
        f"The draft was trained with norm_before_residual, which {server} does not read (it always takes the "
        "residual before the norm); vLLM and speculators do. Train with norm_before_residual=false."
    )


def plain_eagle(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-1 as the reference has it: no norm before the first layer, none after the last, the base's plain head."""
    for key, what in (
        ("use_input_layernorm_in_first_layer", "first layer's input norm"),
        ("use_last_layernorm", "last norm"),
    ):
        if checkpoint.config.get(key):
            return f"The draft has a {what} ({key}), which {server}'s EAGLE class leaves out; train without it."
    if has_biased_head(checkpoint.base_tensors):
        return f"The base's lm_head has a bias, which {server}'s EAGLE class does not add to the draft's logits."
    return ""


def some_blocks(server: str, checkpoint: CheckpointFiles) -> str:
    """Medusa: a head has a residual block."""
    if checkpoint.config["medusa_num_layers"] > 0:
        return ""
    return f"The heads have no residual block (medusa_num_layers 0); {server} was written for one or more."


def few_tokens_shared(server: str, checkpoint: CheckpointFiles) -> str:
    """Medusa: vLLM makes heads of their own over all tokens, and only a shared matrix over those of token_map."""
    if not checkpoint.small_vocabulary or checkpoint.config.get("medusa_tie_lm_head"):
        return ""
    return (
        f"The heads know {checkpoint.draft_vocab_size} of {checkpoint.vocab_size} tokens each by its own matrix; "
        f"{server} loads fewer rows for a shared matrix only (medusa_tie_lm_head). Train with "
        "draft_vocab_size=0 or medusa_tie_lm_head=true."
    )


def whole_vocabulary(server: str, checkpoint: CheckpointFiles) -> str:
    """Medusa: heads of this server score every token of the base."""
    if not checkpoint.small_vocabulary:
        return ""
    return (
        f"The heads know {checkpoint.draft_vocab_size} of {checkpoint.vocab_size} tokens; {server} has no map from "
        "draft ids to tokens (vLLM up to 0.32 has, for shared heads: token_map). Train with draft_vocab_size=0."
    )


def own_head_without_bias(server: str, checkpoint: CheckpointFiles) -> str:
    """Medusa: shared heads are written out as the base's matrix; there is no place for its bias."""
    if checkpoint.config.get("medusa_tie_lm_head") and has_biased_head(checkpoint.base_tensors):
        return f"The heads share the base's lm_head, which has a bias; a Medusa head of {server} has none."
    return ""


REFERENCE_EAGLE3 = (residual_after_norm, ascending_layers, one_layer, only(EAGLE3))
"""EAGLE-3 as the EAGLE repository has it, no more."""
REFERENCE_MEDUSA = (some_blocks, whole_vocabulary, own_head_without_bias, only(MEDUSA))
"""Medusa heads as the Medusa repository has them."""
