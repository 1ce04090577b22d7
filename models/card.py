"""Model cards of base models: JSON made from the config and safetensors headers, without loading weights or torch."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from models import identity
from models.damage import UNSAVED, weights_sum
from models.families import unsupported_reason
from models.identity import first_set
from models.memory import cache_numbers
from models.methods import METHODS
from models.mtp import mtp_layers, mtp_reason, mtp_tensors
from models.quantization import count_parameters, describe, method_of
from models.untrusted import check_sizes, read_safe_config
from speculoos.checksums import ChecksumCache, file_sha256

KV_TOKENS = 2048
LICENSE_LINE = re.compile(r"^license(?:_name)?:\s*[\"']?([\w.+-]+)", re.MULTILINE)


def make_card(folder: str | Path, *, licence: str = "", cache: ChecksumCache = UNSAVED) -> dict[str, Any]:
    """Card of a Hugging Face folder. `licence` overrides the one in its README; `cache` caches the weights' checksum.
    Raises BadInput when the folder has no config or no safetensors, or they do not match; Unsupported when its weights
    are quantized in a format that does not load."""
    folder = Path(folder)
    config = read_safe_config(folder)
    text = config.get("text_config") or config
    entries = identity.tensors(folder)
    check_sizes(folder, config, entries)
    names = [entry.name for entry in entries]
    mtp = {*mtp_tensors(config, names)}  # not loaded with the model
    parameters = count_parameters([entry for entry in entries if entry.name not in mtp], config)
    template = identity.chat_template(folder)
    return {
        "architecture": (config.get("architectures") or [""])[0],
        "model_type": config.get("model_type", ""),
        "parameters": parameters,
        "layers": first_set(text, "num_hidden_layers", "n_layer", "num_layers"),
        "hidden_size": first_set(text, "hidden_size", "n_embd", "d_model"),
        "intermediate_size": first_set(text, "intermediate_size", "n_inner", "ffn_dim"),
        "heads": first_set(text, "num_attention_heads", "n_head"),
        "head_dim": text.get("head_dim"),
        "kv_heads": first_set(text, "num_key_value_heads", "num_attention_heads", "n_head"),
        "vocabulary": text.get("vocab_size"),
        "tied_embeddings": bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
        "dtype": _dtype([e for e in entries if e.dtype in identity.FLOATS] if method_of(config) else entries),
        "quantization": describe(config),
        "max_length": first_set(text, "max_position_embeddings", "n_positions"),
        "chat_template": bool(template),
        "licence": licence or read_licence(folder),
        "size_bytes": sum(entry.size for entry in entries),
        "tokenizer_sha256": identity.tokenizer_sha256(folder),
        "weights_sha256": weights_sum(folder, cache),
        "files": {path.name: file_sha256(path) for path in identity.read_files(folder)},
        "memory": memory_needed(parameters, text),
        "methods": unsupported_reasons(config),
        "mtp": {"layers": layers, "reason": mtp_reason(config)} if (layers := mtp_layers(config, names)) else {},
    }


def memory_needed(parameters: int, config: dict[str, Any]) -> dict[str, int]:
    """Bytes of the weights and a KV cache of 2,048 tokens, by dtype. Activations and the runtime are not included."""
    numbers = parameters + cache_numbers(config) * KV_TOKENS
    return {name: numbers * size for name, size in (("float32", 4), ("bfloat16", 2), ("float16", 2))}


def unsupported_reasons(config: dict[str, Any]) -> dict[str, str]:
    """For each method: "" when it supports a base with this config.json, else the reason in one sentence."""
    return dict.fromkeys(METHODS, unsupported_reason(config))


def _dtype(entries: list[identity.TensorEntry]) -> str:
    counts: Counter[str] = Counter()
    for entry in entries:
        counts[entry.dtype] += entry.count
    common = counts.most_common(1)[0][0]
    return identity.FLOATS.get(common, common.lower())


def read_licence(folder: Path) -> str:
    readme = folder / "README.md"
    text = readme.read_text(encoding="utf-8", errors="replace")[:20_000] if readme.is_file() else ""
    match = LICENSE_LINE.search(text)
    return match.group(1) if match else ""
