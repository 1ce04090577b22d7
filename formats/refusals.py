"""Reasons why a server does not support a checkpoint. Each function takes the server's name and CheckpointFiles and
returns "" or one sentence. Each is about something that the server's source does not read: the server would ignore it
and draft wrong tokens. No torch."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from formats.checkpoint import CheckpointFiles
from formats.gguf_models import model_reason, rope_parameters, rope_reason
from formats.gguf_tokenizer import tokenizer_reason
from formats.quantized import LAYERS
from models.identity import tensors
from speculoos.errors import SpeculoosError

Refusal = Callable[[str, CheckpointFiles], str]
EAGLE = frozenset(
    {
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("rms_norm_eps", "rope_theta", "rope_scaling", "vocab_size", "eagle_num_layers"),
    }
)
EAGLE3 = EAGLE | {"draft_vocab_size", "aux_layers", "norm_before_residual"}
NORMS = frozenset({"norm_before_fc", "fc_norm", "norm_output"})
"""Options of EAGLE-3.1."""
EAGLE31 = EAGLE3 | NORMS
PEAGLE = frozenset({"mask_token_id", "num_depths"})
"""P-EAGLE's keys beside those of EAGLE-3."""
MEDUSA = frozenset(
    {"hidden_size", "vocab_size", "medusa_num_heads", "medusa_num_layers", "medusa_tie_lm_head", "draft_vocab_size"}
)
DFLASH = frozenset(
    {
        *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
        *("rms_norm_eps", "rope_theta", "rope_scaling", "vocab_size", "qk_norm", "attention_bias", "output_bias"),
        *("dflash_num_layers", "block_size", "mask_token_id", "aux_layers", "draft_vocab_size"),
    }
)
PARTS = r"self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|hidden_norm|\w+_layernorm"
EAGLE3_TENSORS = rf"((fc|norm|lm_head|input_norm|fc_norm\.\d+|embed_tokens)|layers\.\d+\.({PARTS}))\.weight|d2t|t2d"
TENSORS = {
    "eagle": rf"fc\.(weight|bias)|embed_tokens\.weight|layers\.\d+\.({PARTS})\.weight",
    "eagle3": EAGLE3_TENSORS,
    "peagle": rf"{EAGLE3_TENSORS}|mask_hidden",
    "dflash": rf"((fc|norm|hidden_norm|lm_head)|layers\.\d+\.({PARTS}|self_attn\.[qk]_norm))\.weight|d2t"
    r"|layers\.\d+\.self_attn\.[qkvo]_proj\.bias",
    "medusa": r"blocks\.\d+\.\d+\.linear\.(weight|bias)|lm_heads\.\d+\.weight|d2t",
}
"""Names of a draft's tensors that every server reads, by method."""


def has_biased_head(base_tensors: Iterable[str]) -> bool:
    """Whether the base model's lm_head has a bias, as in Phi-1, 1.5 and 2."""
    return any(name.endswith(("lm_head.bias", "embed_out.bias")) for name in base_tensors)


@lru_cache(maxsize=64)
def _is_biased(base_path: str) -> bool:
    """`has_biased_head` of a folder, cached because the Train page calls it on every change of its form."""
    return has_biased_head(entry.name for entry in tensors(base_path))


def no_server_reason(method: str, base_path: str | Path) -> str:
    """One sentence if no server can load a draft of this method and base model, else ""; also "" if the base model's
    files cannot be read. Shown before a training."""
    with suppress(SpeculoosError, OSError):
        if method in TENSORS and _is_biased(str(base_path)):
            return (
                "The lm_head of this base model has a bias, which no server adds to the logits of such a draft: it can "
                "be used in Speculoos only. A standalone draft (method draft) can be served."
            )
    return ""


def known_only(known: frozenset[str]) -> Refusal:
    """The server supports the config keys in `known` and the tensors in TENSORS, nothing else."""

    def reason(server: str, checkpoint: CheckpointFiles) -> str:
        for key in checkpoint.unknown(known):
            return f"{server} does not support the draft's config key `{key}` ({checkpoint.config[key]!r})."
        for name in checkpoint.tensors:
            if not re.fullmatch(TENSORS[checkpoint.method], name):
                return f"{server} does not support the draft's tensor {name}."
        return ""

    return reason


def ascending_layers(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3, DFlash: servers collect hidden states while the layers run, each layer once and in ascending order."""
    ids = checkpoint.aux_layers
    if list(ids) != sorted(set(ids)) or min(ids) < 0:
        return (
            f"The draft fuses the base model's layers {list(ids)}; {server} collects each layer once and in ascending "
            "order. Train with other aux_layers (the defaults repeat layers in small base models)."
        )
    return ""


def three_layers(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3: this server's `fc` always takes three hidden states."""
    count = len(checkpoint.aux_layers)
    return "" if count == 3 else f"The draft fuses {count} layers of the base model; {server} always fuses three."


def one_layer(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3: other servers than vLLM and speculators use other names, or norm the input of further layers."""
    count = checkpoint.config.get("eagle_num_layers", 1)
    return "" if count == 1 else f"The draft has {count} layers; exports for {server} support only one."


def residual_before_norm(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3: only vLLM and speculators read `norm_before_residual`."""
    if not checkpoint.config.get("norm_before_residual"):
        return ""
    return (
        f"The draft was trained with norm_before_residual, which {server} does not read (it always takes the "
        "residual before the norm); vLLM and speculators do. Train with norm_before_residual=false."
    )


def norms_read(*keys: str) -> Refusal:
    """EAGLE-3.1: of its options the server reads only `keys`."""

    def reason(server: str, checkpoint: CheckpointFiles) -> str:
        for key in sorted(NORMS - {*keys}):
            if checkpoint.config.get(key):
                return (
                    f"The draft was trained with {key}, which {server} does not read; vLLM, speculators, SGLang and "
                    f"TensorRT-LLM do. Train with {key}=false."
                )
        return ""

    return reason


def plain_eagle(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-1 as in the reference: no norm before the first layer or after the last, and an lm_head without bias."""
    for key, name in (
        ("use_input_layernorm_in_first_layer", "first layer's input norm"),
        ("use_last_layernorm", "last norm"),
    ):
        if checkpoint.config.get(key):
            return f"The draft has a {name} ({key}), which {server}'s EAGLE class leaves out; train without it."
    if has_biased_head(checkpoint.base_tensors):
        return f"The base model's lm_head has a bias, which {server}'s EAGLE class does not add to the draft's logits."
    return ""


def base_vocabulary(server: str, checkpoint: CheckpointFiles) -> str:
    """DFlash: the server uses the base model's lm_head, so that the draft has all its tokens."""
    if not checkpoint.small_vocabulary:
        return ""
    return (
        f"The draft has {checkpoint.draft_vocab_size} of {checkpoint.vocab_size} tokens, and {server} always uses the "
        "base model's lm_head. Train with draft_vocab_size=0 and draft_vocab_coverage=0."
    )


def unbiased_base_head(server: str, checkpoint: CheckpointFiles) -> str:
    """DFlash: a draft with all tokens uses the base model's lm_head, of which servers take the matrix alone."""
    if not checkpoint.small_vocabulary and has_biased_head(checkpoint.base_tensors):
        return f"The base model's lm_head has a bias, which {server} does not add to the draft's logits."
    return ""


def no_biases(server: str, checkpoint: CheckpointFiles) -> str:
    """DFlash: attention without biases."""
    if not checkpoint.config.get("attention_bias"):
        return ""
    return f"The draft's attention has biases (attention_bias), which {server} does not read."


def residual_blocks(server: str, checkpoint: CheckpointFiles) -> str:
    """Medusa: every head has at least one residual block."""
    if checkpoint.config["medusa_num_layers"] > 0:
        return ""
    return f"The heads have no residual block (medusa_num_layers 0); {server} requires one or more."


def whole_vocabulary(server: str, checkpoint: CheckpointFiles) -> str:
    """Medusa: every head scores every token of the base model. vLLM has a map for less (token_map), but its own check
    of the loaded weights rejects it ("not initialized from checkpoint", 0.32)."""
    if not checkpoint.small_vocabulary:
        return ""
    return (
        f"The heads have {checkpoint.draft_vocab_size} of {checkpoint.vocab_size} tokens; {server} loads no map from "
        "draft ids to tokens. Train with draft_vocab_size=0 and draft_vocab_coverage=0."
    )


def unbiased_shared_head(server: str, checkpoint: CheckpointFiles) -> str:
    """Medusa: shared heads are exported as copies of the base model's matrix, without its bias."""
    if checkpoint.config.get("medusa_tie_lm_head") and has_biased_head(checkpoint.base_tensors):
        return f"The heads share the base model's lm_head, which has a bias; a Medusa head of {server} has none."
    return ""


def llama_layers(server: str, checkpoint: CheckpointFiles) -> str:
    """Standalone drafts in 8 bits: every matrix is a projection of attention or MLP, an embedding or the lm_head."""
    for name, entry in checkpoint.tensors.items():
        known = LAYERS.fullmatch(name) or name.endswith(("embed_tokens.weight", "lm_head.weight"))
        if len(entry.shape) > 1 and not known:
            return f"8-bit exports support layers like Llama's only, and the draft has a matrix {name}."
    return ""


def gguf_base(server: str, checkpoint: CheckpointFiles) -> str:
    """EAGLE-3, DFlash: the server loads the base model from a GGUF file too, and the draft's file has its tokenizer."""
    if reason := rope_reason(rope_parameters(checkpoint.config)):
        return f"The draft: {reason}"
    if max(checkpoint.aux_layers) + 1 >= checkpoint.base_layers:
        return f"The draft fuses the output of the base model's last layer, which {server} does not pass to it."
    return _base_tokenizer(checkpoint)


def gguf_model(server: str, checkpoint: CheckpointFiles) -> str:
    """Standalone drafts: a model that GGUF files are written for."""
    reason = model_reason(checkpoint.config, checkpoint.tensors)
    return f"The draft: {reason}" if reason else _base_tokenizer(checkpoint)


def _base_tokenizer(checkpoint: CheckpointFiles) -> str:
    reason = tokenizer_reason(checkpoint.base_path)
    return f"The base model: {reason}" if reason else ""


REFERENCE_EAGLE3 = (residual_before_norm, ascending_layers, one_layer)
"""EAGLE-3 as in the EAGLE repository; each server adds the config keys that it reads."""
REFERENCE_MEDUSA = (residual_blocks, whole_vocabulary, unbiased_shared_head, known_only(MEDUSA))
"""Medusa heads as in the Medusa repository."""
