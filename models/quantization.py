"""Quantized checkpoints: which formats load, and how transformers is asked to load them. No torch.

A quantized base computes with its stored weights and unquantized activations. Rounding activations to 8 bits turns the
rounding differences between a step and a tree into other tokens, so its output could not be exact (docs/log.md)."""

import re
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from models.identity import SIZES, TensorEntry
from speculoos.errors import BadInput, Unavailable, Unsupported

CONFIG = "quantization_config"
PACKAGES = {
    "fp8": {},
    "compressed-tensors": {"compressed_tensors": "compressed-tensors"},
    "modelopt": {"compressed_tensors": "compressed-tensors"},
    "torchao": {"torchao": "torchao"},
    "bitsandbytes": {"bitsandbytes": "bitsandbytes"},
    "gptq": {"optimum": "optimum", "gptqmodel": "gptqmodel"},
    "awq": {"gptqmodel": "gptqmodel"},
}
"""{quant_method: {module: package on PyPI}} of the formats that load, with the packages that transformers needs."""
FORMATS = "FP8, compressed-tensors, ModelOpt FP8, GPTQ, AWQ, bitsandbytes and torchao"
SCHEMES = {"fp8": "FP8_DYNAMIC", "w8a8": "W8A8", "w8a16": "W8A16", "w4a16": "W4A16"}
"""{scheme of `models.quantize`: preset of compressed-tensors}, as vLLM and llm-compressor name them."""
GROUP_SIZES = (128, 64, 32)
"""Weights with one scale, in schemes with groups: sizes that vLLM's kernels support, best first."""
AUXILIARY = re.compile(
    r"(.*_)?(scale(_\w+)?|scales|zero_point|qzeros|g_idx)|SCB|weight_(format|shape)|"
    r"(nested_)?(absmax|quant_map)|bitsandbytes__\w+"
)
"""Last part of the names of tensors that belong to a quantized weight."""
ACTIVATIONS = re.compile(r"(input|output|q|k|v)_\w+")
"""Of these, those of quantized activations and of a quantized KV cache."""
JSON_NAMES = {dict: "object", list: "array"}
INTEGERS = ("I64", "I32", "I16", "I8", "U8")


def method_of(config: Mapping[str, Any]) -> str:
    """`quant_method` of a config.json; "" for an unquantized model."""
    if not (quantized := config.get(CONFIG)):
        return ""
    loads = quantized.get("load_in_4bit") or quantized.get("load_in_8bit")  # of bitsandbytes before quant_method
    return str(quantized.get("quant_method") or ("bitsandbytes" if loads else CONFIG))[:40]


def bits_of(config: Mapping[str, Any]) -> int:
    """Bits of a quantized weight, from config.json; 8 if it does not say."""
    quantized = config.get(CONFIG) or {}
    groups = [group for group in (quantized.get("config_groups") or {}).values() if isinstance(group, dict)]
    numbers = [
        quantized.get("bits"),
        quantized.get("w_bit"),
        *((g.get("weights") or {}).get("num_bits") for g in groups),
    ]
    four = quantized.get("load_in_4bit") or "int4" in str(quantized.get("quant_type", "")).lower()
    return next((n for n in numbers if isinstance(n, int) and n > 0), 4 if four else 8)


def describe(config: Mapping[str, Any]) -> str:
    """`compressed-tensors, 4 bits`; "" for an unquantized model."""
    method = method_of(config)
    return f"{method}, {bits_of(config)} bits" if method else ""


def check_format(config: Mapping[str, Any], path: Path) -> None:
    """Raise Unsupported for a format that does not load, BadInput for a quantization_config that makes no sense."""
    if not (quantized := config.get(CONFIG)):
        return
    if not isinstance(quantized, dict):
        raise BadInput(f"{path}: {CONFIG}: expected a JSON object; fetch the file again.")
    if (method := method_of(config)) not in PACKAGES:
        raise Unsupported(
            f"{path}: its weights are quantized ({method}), which is not supported; {FORMATS} are, and GGUF files, "
            "which are de-quantized."
        )
    for key, kind in (("config_groups", dict), ("transform_config", dict), ("ignore", list)):
        if not isinstance(quantized.get(key) or kind(), kind):
            raise BadInput(f"{path}: {CONFIG}: {key}: expected a JSON {JSON_NAMES[kind]}; fetch the file again.")
    if method == "modelopt" and quantized.get("quant_algo") != "FP8":
        raise Unsupported(
            f"{path}: of ModelOpt's exports only FP8 loads, and this is {str(quantized.get('quant_algo'))[:40]}; "
            "convert it to compressed-tensors, or fetch the unquantized model."
        )
    if method == "compressed-tensors" and (quantized.get("transform_config") or {}).get("config_groups"):
        raise Unsupported(
            f"{path}: transform_config: transformers does not apply the rotations of this checkpoint; quantize the "
            "model without them."
        )


def check_packages(config: Mapping[str, Any], name: str) -> None:
    """Raise Unavailable when a package that the format needs is missing."""
    method = method_of(config)
    missing = [package for module, package in PACKAGES.get(method, {}).items() if find_spec(module) is None]
    if missing:
        raise Unavailable(
            f"{name}: its weights are quantized ({method}), which needs {' and '.join(missing)}; "
            f"install with `pip install {' '.join(missing)}`, then try again."
        )


def loading_config(config: dict[str, Any]) -> dict[str, Any]:
    """config.json as transformers should read it: without quantization of activations and of the KV cache, and with
    weights de-quantized where no kernel would use them as they are (docs/data.md)."""
    method = method_of(config)
    if method == "fp8":  # its kernels quantize activations and are fetched from the hub
        return {**config, CONFIG: {**config[CONFIG], "dequantize": True}}
    if method not in ("compressed-tensors", "modelopt"):
        return config
    quantized = dict(config[CONFIG])
    if method == "modelopt":
        quantized |= {"quant_method": "compressed-tensors", "format": "float-quantized"}
        quantized["ignore"] = [_pattern(str(name)) for name in quantized.get("ignore") or ()]
    groups = {name: _weights_only(group) for name, group in (quantized.get("config_groups") or {}).items()}
    kept = {
        key: quantized[key] for key in ("quant_method", "format", "ignore", "quantization_status") if key in quantized
    }
    one = len(groups) == 1  # transformers would use one group for all
    return {**config, CONFIG: {"quantization_status": "compressed", **kept, "config_groups": groups, "dequantize": one}}


def check_unused(names: Iterable[str], folder: Path) -> None:
    """Raise Unsupported when tensors that belong to quantized weights are among `names`, those that were not loaded."""
    last = {name: name.rpartition(".")[2] for name in names}
    if lost := sorted(n for n, part in last.items() if AUXILIARY.fullmatch(part) and not ACTIVATIONS.fullmatch(part)):
        raise Unsupported(
            f"{folder}: transformers does not use {len(lost)} tensors of its quantized weights (first: {lost[0]}), so "
            "they would be wrong; quantize the model in another way."
        )


def _weights_only(group: Any) -> Any:
    if not isinstance(group, dict) or not isinstance(group.get("weights"), dict):
        return group
    weights = {"strategy": "tensor", "symmetric": True, **group["weights"]}
    return {**group, "weights": weights, "input_activations": None, "output_activations": None}


def _pattern(name: str) -> str:
    """A module name of ModelOpt, which may contain `*`, for compressed-tensors."""
    return f"re:{re.escape(name).replace(re.escape('*'), '.*')}" if "*" in name else name


def count_parameters(tensors: list[TensorEntry], config: Mapping[str, Any]) -> int:
    """Number of parameters; several that are packed into one integer count as several."""
    if not method_of(config):
        return sum(entry.count for entry in tensors)
    bits = bits_of(config)
    weights = (entry for entry in tensors if not AUXILIARY.fullmatch(entry.name.rpartition(".")[2]))
    return sum(e.count * 8 * SIZES[e.dtype] // bits if e.dtype in INTEGERS else e.count for e in weights)
