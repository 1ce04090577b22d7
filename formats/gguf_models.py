"""Llama, Mistral, Qwen2, Qwen3 and Phi-3 models as llama.cpp reads them: the keys of their sizes and rotary embeddings,
and their tensors. No torch at import.

Sources: llama.cpp's conversion/{base,llama,qwen,phi}.py (keys, order of rows), src/llama-model.cpp (names)."""

import array
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from formats.plan import TensorSource, constant, from_entry
from models.identity import FLOATS, SIZES, TensorEntry
from speculoos.errors import Unsupported

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "phi3": "phi3"}
"""{model_type in config.json: architecture in llama.cpp}."""
CONVERTER = "convert it with llama.cpp's convert_hf_to_gguf.py"
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LAYER = re.compile(r"(?:model\.)?layers\.(\d+)\.(.+)\.(weight|bias)")
SCALINGS = {"default": (), "linear": ("factor",), "llama3": (), "yarn": ("factor", "original_max_position_embeddings")}
"""{type of rope scaling: settings without which it is refused}; Phi-3 also has `longrope`."""
YARN = {
    "attention_factor": "rope.scaling.yarn_attn_factor",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}


def model_reason(config: Mapping[str, Any], names: Iterable[str]) -> str:
    """One sentence if a model with this config.json and tensors cannot be written here, else ""."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        return f"GGUF files are written for Llama, Mistral, Qwen2, Qwen3 and Phi-3, not {kind}; {CONVERTER}."
    if config.get("quantization_config"):
        return f"Its weights are quantized, which GGUF files store in another way; {CONVERTER}."
    if config.get("use_sliding_window"):
        return f"Its sliding window (use_sliding_window) is not written to GGUF files; {CONVERTER}."
    if (act := config.get("hidden_act", "silu")) != "silu":
        return f"Its activation {act} is not the one that llama.cpp computes for {kind}; {CONVERTER}."
    rope = rope_parameters(config)
    if rope.get("partial_rotary_factor", 1.0) != 1.0 and kind != "phi3":
        return f"It rotates only a part of each head (partial_rotary_factor); {CONVERTER}."
    if reason := rope_reason(rope, kind):
        return reason
    unknown = next((name for name in names if not (gguf_name(name) or _is_derived(name))), "")
    return f"Its tensor {unknown} is not known for {kind}; {CONVERTER}." if unknown else ""


def rope_reason(rope: Mapping[str, Any], kind: str = "llama") -> str:
    """One sentence if the scaling of a rotary embedding cannot be written, else ""."""
    name = rope.get("rope_type") or "default"
    if name in ("longrope", "su") and kind == "phi3":
        return ""
    if name not in SCALINGS or any(rope.get(key) is None for key in SCALINGS[name]):
        return f"Its rope scaling {name} is not written to GGUF files; {CONVERTER}."
    return ""


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """`rope_theta`, `rope_type` and its settings, from configs of transformers 5 and older ones."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    rope["rope_theta"] = float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    for key in ("original_max_position_embeddings", "partial_rotary_factor"):
        if rope.get(key) is None and config.get(key) is not None:
            rope[key] = config[key]
    return rope


def size_keys(architecture: str, config: Mapping[str, Any], layers: int, rows: int) -> dict[str, Any]:
    """`ARCHITECTURE.*` keys of a model of `layers` layers with a vocabulary of `rows`. Numbers of an integer key are
    int, of a floating-point key float. A model with a sliding window in every layer is limited to it, because llama.cpp
    attends to all tokens in these architectures."""
    heads = config["num_attention_heads"]
    dim = config.get("head_dim") or config["hidden_size"] // heads
    length = int(config.get("max_position_embeddings") or 2048)
    window = None if "use_sliding_window" in config else config.get("sliding_window")
    rope = rope_parameters(config)
    keys: dict[str, Any] = {
        "block_count": layers,
        "context_length": min(length, window or length),
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "attention.key_length": dim,
        "attention.value_length": dim,
        "attention.layer_norm_rms_epsilon": float(config.get("rms_norm_eps", 1e-6)),
        "rope.dimension_count": int(rope.get("partial_rotary_factor", 1.0) * dim),
        "rope.freq_base": rope["rope_theta"],
        "vocab_size": rows,
    }
    if architecture == "phi3":
        keys["attention.sliding_window"] = int(window or 0)
    return {f"{architecture}.{key}": value for key, value in (keys | _scaling_keys(rope, length)).items()}


def _scaling_keys(rope: Mapping[str, Any], length: int) -> dict[str, Any]:
    kind, keys = rope["rope_type"], {}
    original = rope.get("original_max_position_embeddings")
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(rope["factor"])}
    if original:
        keys["rope.scaling.original_context_length"] = int(original)
    if kind == "yarn":
        keys |= {name: float(rope[key]) for key, name in YARN.items() if rope.get(key) is not None}
    if kind in ("longrope", "su"):
        scale, original = length / original, int(original)
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
    return keys


def rope_tensors(config: Mapping[str, Any]) -> list[TensorSource]:
    """Divisors of the rotary frequencies, float32: Llama 3's (`rope_freqs`), or Phi-3's for short and long texts."""
    rope = rope_parameters(config)
    if rope["rope_type"] in ("longrope", "su"):
        factors = {f"rope_factors_{name}.weight": rope[f"{name}_factor"] for name in ("long", "short")}
        return [constant(name, "F32", (len(v),), array.array("f", v).tobytes()) for name, v in factors.items()]
    if rope["rope_type"] != "llama3":
        return []
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

    def chunks() -> Iterator[bytes]:
        from models.draft_layers import frequencies

        scaled = frequencies(dim, rope["rope_theta"], rope)[0].tolist()
        plain = (rope["rope_theta"] ** (-2 * pair / dim) for pair in range(dim // 2))
        yield array.array("f", (one / other for one, other in zip(plain, scaled, strict=True))).tobytes()

    return [TensorSource("rope_freqs.weight", "F32", (dim // 2,), chunks)]


def model_tensors(config: Mapping[str, Any], entries: Iterable[TensorEntry]) -> list[TensorSource]:
    """The tensors with llama.cpp's names and order of rows, in their stored type."""
    heads = config["num_attention_heads"]
    counts = {"attn_q": heads, "attn_k": config.get("num_key_value_heads") or heads}
    permutes, tied = ARCHITECTURES[config["model_type"]] == "llama", bool(config.get("tie_word_embeddings"))
    sources = []
    for entry in entries:
        name = gguf_name(entry.name)
        if not name or (tied and name == "output.weight"):
            continue
        count = counts.get(name.split(".")[-2]) if permutes else None
        source = from_entry(entry, name)
        sources.append(interleaved(source, count) if count else source)
    return sources


def gguf_name(name: str) -> str:
    """llama.cpp's name of a tensor of a Llama-like model; "" for others."""
    outer, _, ending = name.rpartition(".")
    if outer in OUTER and ending == "weight":
        return f"{OUTER[outer]}.weight"
    match = LAYER.fullmatch(name)
    return f"blk.{match[1]}.{INNER[match[2]]}.{match[3]}" if match and match[2] in INNER else ""


def interleaved(source: TensorSource, heads: int) -> TensorSource:
    """Queries or keys [heads · d, …] with the rows of each head in the order 0, d/2, 1, d/2 + 1, …: llama.cpp rotates
    neighbouring channels of these architectures, transformers channels d/2 apart."""
    columns = SIZES[source.dtype] * math.prod(source.shape[1:])

    def chunks() -> Iterator[bytes]:
        import numpy as np

        rows = np.frombuffer(b"".join(source.chunks()), np.uint8).reshape(heads, 2, -1, columns)
        yield rows.swapaxes(1, 2).tobytes()

    return replace(source, chunks=chunks)


def _is_derived(name: str) -> bool:
    """Whether llama.cpp computes the tensor itself."""
    return name.endswith("rotary_emb.inv_freq")


def rounded(source: TensorSource, kind: str) -> TensorSource:
    """The tensor in the type `kind`: F32, F16, Q8_0 or Q4_1. Vectors are F32, as llama.cpp requires; embeddings and the
    output matrix are Q8_0 where others are Q4_1; a matrix whose rows are no whole number of blocks is F16. Raises
    Unsupported where a value is too large for F16. Integers are kept."""
    from formats.plan import BLOCKS

    if source.dtype not in FLOATS:
        return source
    if len(source.shape) == 1:
        kind = "F32"
    elif kind == "Q4_1" and source.name in ("token_embd.weight", "output.weight"):
        kind = "Q8_0"
    if kind in BLOCKS and source.shape[-1] % BLOCKS[kind][0]:
        kind = "F16"
    return TensorSource(source.name, kind, source.shape, _converted(source, kind))


def _converted(source: TensorSource, kind: str) -> Callable[[], Iterator[bytes]]:
    def chunks() -> Iterator[bytes]:
        import gguf
        import numpy as np

        for chunk in source.chunks():
            if source.dtype == "BF16":
                values = (np.frombuffer(chunk, "<u2").astype("<u4") << 16).view("<f4")
            else:
                values = np.frombuffer(chunk, {"F64": "<f8", "F32": "<f4", "F16": "<f2"}[source.dtype]).astype("<f4")
            if kind == "F32":
                yield values.tobytes()
                continue
            if kind == "F16" and np.abs(values).max(initial=0) > np.finfo("<f2").max:
                raise Unsupported(f"{source.name}: has values that are too large for F16; choose F32.")
            # the type of a file is one of gguf's; 4 MiB of any source type are whole blocks of 32
            yield gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind]).tobytes()

    return chunks
