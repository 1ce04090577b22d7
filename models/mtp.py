"""Multi-token prediction (MTP) layers that a base model brings along, as DeepSeek-V3 (arXiv:2412.19437, section 2.2),
GLM-4.5, MiMo and Qwen 3.5 do. Recognized from config.json and tensor names, without importing torch.

Names of the tensors: `mtp.…` or `model.mtp…` (Qwen 3.5, MiMo, ERNIE 4.5), or a layer after the last,
`model.layers.N.…` with N ≥ num_hidden_layers (DeepSeek, GLM)."""

import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models.families import unsupported_reason
from models.quantization import method_of

COUNTS = ("num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers", "num_mtp_modules")
"""Config keys of the number of layers: DeepSeek, GLM, MiMo and others; transformers; Qwen 3.5; MiniMax."""
MTP = re.compile(r"(?:^|\.)mtp[._]")
LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
DEFAULT_TYPE = re.compile(r'mtp_layer_types = \["(\w+)"\]')
"""Matches the attention of MTP layers without `mtp_layer_types` in the source of a family's config."""
MTP_LAYER = re.compile(r"(?:^|\.)mtp(?:_layers|_block)?\.(?:layers\.)?(\d+)\.")


def mtp_tensors(config: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of the tensor names that belong to MTP layers."""
    layers = _text(config).get("num_hidden_layers")
    last = layers if isinstance(layers, int) else 1 << 30
    return [n for n in names if MTP.search(n) or ((match := LAYER.search(n)) and int(match[1]) >= last)]


def mtp_layers(config: Mapping[str, Any], names: Iterable[str]) -> int:
    """Number of MTP layers in the files of a base model; 0 also if config.json has some, but the files have none, as in
    many fine-tuned models."""
    found = mtp_tensors(config, names)
    stated = next((n for key in COUNTS if isinstance(n := _text(config).get(key), int) and n > 0), 1)
    numbers = {match[1] for n in found if (match := MTP_LAYER.search(n) or (not MTP.search(n) and LAYER.search(n)))}
    return (len(numbers) or stated) if found else 0


def mtp_reason(config: Mapping[str, Any]) -> str:
    """Why the MTP layers of a base model with this config.json cannot draft here, in one sentence; "" if they can."""
    kind = str(_text(config).get("model_type") or config.get("model_type", ""))
    if reason := unsupported_reason(dict(config)):
        return reason
    if method_of(config):
        return "Its weights are quantized, and MTP layers are only read unquantized."
    if _text(config).get("kv_lora_rank"):
        return "Its attention (MLA) has keys and values of different sizes, which the cache of the engine cannot hold."
    if not (source := _source(kind)):
        return f"The installed transformers has no MTP layers for {kind}."
    if (attention := _attention(_text(config), source)) != "full_attention":
        return f"Its MTP layers have {attention.replace('_', ' ')}, and only layers with full attention are drafted."
    return ""


def _source(kind: str) -> str:
    """The source of the family's config if the installed transformers builds MTP layers for it; else ""."""
    spec, name = find_spec("transformers"), kind.replace("-", "_")
    if spec is None or not spec.origin or not name.isidentifier():
        return ""
    file = Path(spec.origin).parent / "models" / name / f"configuration_{name}.py"
    source = file.read_text(encoding="utf-8") if file.is_file() else ""
    return source if "num_mtp_layers" in source else ""


def _attention(text: Mapping[str, Any], source: str) -> str:
    """The layer type of the first MTP layer, which drafts: of `mtp_layer_types`, of the entries of `layer_types` after
    the last layer, or the family's default."""
    layers, types, own = (text.get(key) for key in ("num_hidden_layers", "layer_types", "mtp_layer_types"))
    if not own and isinstance(types, list) and isinstance(layers, int):
        own = types[layers:]
    if isinstance(own, list) and own:
        return str(own[0])[:40]
    default = DEFAULT_TYPE.search(source)
    return default[1] if default else "full_attention"


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    text = config.get("text_config")
    return text if isinstance(text, Mapping) else config
