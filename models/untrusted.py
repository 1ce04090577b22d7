"""Sanitise untrusted model folders before transformers loads them.

Config keys that fetch code, name other files or choose kernels are dropped at any depth. transformers loads a temporary
folder with the remaining configs and links to the hashed weights, so it reads no unchecked file. No torch."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from models import identity, quantization
from models.identity import TensorEntry
from speculoos.errors import BadInput, Unsupported

UNSAFE_KEYS = frozenset(
    {
        *("auto_map", "custom_pipelines", "custom_generate", "trust_remote_code", "code_revision", "_commit_hash"),
        *("attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
        *("_attn_implementation_autoset", "_flash_attn_2_enabled"),
        *("experts_implementation", "_experts_implementation", "_experts_implementation_internal"),
        *("use_kernels", "kernel_config", "configuration_files", "transformers_weights", "fast_tokenizer_files"),
        *("_name_or_path", "name_or_path", "tokenizer_file", "vocab_file", "merges_file", "spm_file"),
        *("use_pretrained_backbone", "assistant_model", "cache_implementation", "cache_config", "compile_config"),
        *("base_model_tp_plan", "base_model_pp_plan", "tp_plan", "distributed_config"),
    }
)
"""Keys that make transformers run or fetch code, read other files, or change how it computes."""
QUANTIZED_KEYS = (quantization.CONFIG, "compression_config")
QUANTIZED_TENSORS = (".qweight", ".qzeros", ".weight_packed", ".absmax")
WIDTHS = (
    *("vocab_size", "hidden_size", "n_embd", "d_model", "intermediate_size", "n_inner", "ffn_dim", "d_ff"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "num_attention_heads", "n_head"),
    *("num_key_value_heads", "head_dim", "num_experts", "num_local_experts", "n_routed_experts"),
)
"""Sizes that are at most the largest tensor dimension."""
DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "sliding_window")
MAX_POSITIONS = 1 << 27
MEMORY_DISK = Path("/dev/shm")


def read_safe_config(folder: str | Path) -> dict[str, Any]:
    """config.json without unsafe keys. Raises BadInput for an invalid config, Unsupported for a quantized model of a
    format that does not load."""
    path = Path(folder) / "config.json"
    config = identity.read_json(path)
    if not config:
        raise BadInput(f"{folder}: no config.json with a model_type, so this is not a Hugging Face model folder.")
    _check_types(config, path)
    quantization.check_format(config, path)
    if nested := _quantized({key: value for key, value in config.items() if key != quantization.CONFIG}):
        raise _quantized_error(path, nested)
    return without_unsafe_keys(config)


def without_unsafe_keys(value: Any) -> Any:
    """JSON without UNSAFE_KEYS, at any depth."""
    if isinstance(value, dict):
        return {key: without_unsafe_keys(item) for key, item in value.items() if key not in UNSAFE_KEYS}
    return [without_unsafe_keys(item) for item in value] if isinstance(value, list) else value


def check_sizes(folder: str | Path, config: dict[str, Any], tensors: list[TensorEntry]) -> None:
    """Raise BadInput when config.json has larger sizes than the weights, for which transformers would allocate memory.
    Raises Unsupported for quantized tensors that config.json does not mention."""
    path = Path(folder) / "config.json"
    if not quantization.method_of(config) and (packed := next(filter(_is_quantized, tensors), None)):
        raise _quantized_error(path, packed.name)
    widest = max((size for entry in tensors for size in entry.shape), default=0)
    limits = {
        **dict.fromkeys(WIDTHS, widest),
        **dict.fromkeys(DEPTHS, len(tensors)),
        **dict.fromkeys(LENGTHS, MAX_POSITIONS),
    }
    for name, value in _numbers(config, "", path):
        limit = limits[name.rpartition(".")[2]]
        if value > limit:
            raise BadInput(
                f"{path}: {name} {value} does not match the weights (at most {limit}); "
                "restore the config.json that came with them."
            )


@contextmanager
def sanitised_folder(folder: str | Path, weights: bool = True) -> Iterator[Path]:
    """A temporary folder for transformers: cleaned configs, links to tokenizer files and weights. Raises BadInput or
    Unsupported for a folder that must not be loaded."""
    folder = Path(folder).absolute()
    parent = MEMORY_DISK if os.access(MEMORY_DISK, os.W_OK) else None  # models load even when the disk is full
    with tempfile.TemporaryDirectory(prefix="speculoos-", dir=parent) as temporary:
        clean = Path(temporary)
        _write_configs(folder, clean)
        for name in (*identity.TOKENIZER_FILES, *identity.EXTRA_TOKENIZER_FILES):
            if (folder / name).is_file():
                (clean / name).symlink_to(folder / name)
        files = identity.weight_files(folder) if weights else []
        for file in files:
            (clean / ("model.safetensors" if len(files) == 1 else file.name)).symlink_to(file)
        if len(files) > 1:
            identity.write_index(folder, clean)
        yield clean


def _write_configs(folder: Path, clean: Path) -> None:
    if (folder / "config.json").exists():
        config = quantization.loading_config(read_safe_config(folder))
        (clean / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if template := identity.chat_template(folder):
        (clean / "chat_template.jinja").write_text(template, encoding="utf-8", errors="replace")
    for name in ("tokenizer_config.json", "generation_config.json"):
        if (folder / name).exists():
            config = without_unsafe_keys(identity.read_json(folder / name))
            config.pop("chat_template", None)
            (clean / name).write_text(json.dumps(config), encoding="utf-8")


def _check_types(config: dict[str, Any], path: Path) -> None:
    kind, names = config.get("model_type"), config.get("architectures")
    if not isinstance(kind, str) or not kind:
        raise BadInput(f"{path}: model_type: expected the name of an architecture; this is not a Hugging Face model.")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise BadInput(f"{path}: architectures: expected a list of names; restore the file.")
    if not isinstance(config.get("text_config") or {}, dict):
        raise BadInput(f"{path}: text_config: expected an object; restore the file.")
    for _ in _numbers(config, "", path):
        pass


def _numbers(config: dict[str, Any], prefix: str, path: Path) -> Iterator[tuple[str, int]]:
    """(dotted name, value) of every size in a config, including nested ones. Raises BadInput for an invalid number."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _numbers(value, f"{name}.", path)
        elif key in (*WIDTHS, *DEPTHS, *LENGTHS) and value is not None:
            for number in value if isinstance(value, list) else [value]:
                if type(number) is float and number.is_integer():
                    number = int(number)
                if type(number) is not int or number < -1:
                    raise BadInput(f"{path}: {name}: expected a whole number, got {str(number)[:60]!r}.")
                yield name, number


def _quantized(config: dict[str, Any]) -> str:
    for key, value in config.items():
        if key in QUANTIZED_KEYS and value:
            method = value.get("quant_method") or value.get("quant_type") if isinstance(value, dict) else value
            return str(method or key)[:40]
        if isinstance(value, dict) and (inner := _quantized(value)):
            return inner
    return ""


def _is_quantized(entry: TensorEntry) -> bool:
    """Whether a tensor is a quantized weight, by its name or dtype."""
    odd = entry.name.endswith(".weight") and entry.dtype not in identity.FLOATS
    return odd or entry.name.endswith(QUANTIZED_TENSORS)


def _quantized_error(path: Path, name: str) -> Unsupported:
    return Unsupported(
        f"{path}: its weights are quantized ({name}), and it has no quantization_config that says how; "
        "fetch the model again, its unquantized original, or a GGUF file of it, which is de-quantized."
    )
