"""GGUF files: written from a plan, and base models for llama.cpp and the programs that embed it. No torch at import."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from formats.gguf_models import ARCHITECTURES, CONVERTER, model_reason, model_tensors, rope_tensors, rounded, size_keys
from formats.gguf_tokenizer import tokenizer_keys, tokenizer_reason
from formats.plan import ExportPlan, byte_counter, write_tensor
from models.identity import TensorEntry, tensors
from models.untrusted import read_safe_config
from speculoos.errors import BadInput, Conflict, Unsupported
from speculoos.reporting import Reporter, SilentReporter

PHI3_TOKENS = ("<unk>", "<s>", "</s>", "<|endoftext|>")
TYPES = {"f32": ("F32", 0), "f16": ("F16", 1), "q8_0": ("Q8_0", 7), "q4_1": ("Q4_1", 3)}
"""{type in commands: (type of the matrices, `general.file_type`)}."""


def write_base(folder: str | Path, file: str | Path, type: str = "f16", reporter: Reporter | None = None) -> Path:
    """Write the model in `folder` (config.json, safetensors of float32, bfloat16 or float16, tokenizer.json) to the
    new GGUF file `file`, a few megabytes at a time; `type` is one of TYPES. Returns `file`. It is complete or does not
    exist. Raises Unsupported for a model that `base_reason` refuses, Conflict if `file` exists, BadInput for an unknown
    type, Damaged for truncated weights, Cancelled if `reporter` is stopped."""
    folder, file, reporter = Path(folder), Path(file), reporter or SilentReporter()
    if file.exists():
        raise Conflict(f"{file} already exists; choose another path, or remove it first.")
    if type not in TYPES:
        raise BadInput(f"type {type}: expected one of {', '.join(TYPES)}.")
    entries = tensors(folder)
    if reason := base_reason(folder, entries):
        raise Unsupported(f"{folder}: {reason}")
    plan = typed(model_plan(folder, _config(folder), entries, folder), type)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f".{file.name}.part")
    try:
        write_gguf(part, plan, byte_counter(reporter, plan.size, "written"))
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)
    return file


def base_reason(folder: str | Path, entries: list[TensorEntry] | None = None) -> str:
    """One sentence if `write_base` cannot write the model in `folder`, else "". Reads headers and JSON files only."""
    folder = Path(folder)
    names = [entry.name for entry in entries or tensors(folder)]
    return model_reason(_config(folder), names) or tokenizer_reason(folder)


def _config(folder: Path) -> dict[str, Any]:
    return dict(read_safe_config(folder))


def model_plan(folder: Path, config: dict[str, Any], entries: list[TensorEntry], tokenizer: Path) -> ExportPlan:
    """The file of a whole model, its weights in their stored type. `tokenizer`: the folder of its tokenizer."""
    architecture = ARCHITECTURES[config["model_type"]]
    sources = model_tensors(config, entries)
    rows = next((source.shape[0] for source in sources if source.name == "token_embd.weight"), 0)
    if not rows:
        raise BadInput(f"{folder}: has no tensor model.embed_tokens.weight; {CONVERTER}.")
    keys = {
        "general.architecture": architecture,
        "general.type": "model",
        **size_keys(architecture, config, int(config["num_hidden_layers"]), rows),
    }
    return ExportPlan([*sources, *rope_tensors(config)], keys, tokenizer=tokenizer)


def typed(plan: ExportPlan, type: str) -> ExportPlan:
    """The plan with its matrices in one of TYPES."""
    kind, number = TYPES[type]
    keys = {**plan.config, "general.file_type": number, "general.quantization_version": 2}
    sources, name = [rounded(source, kind) for source in plan.tensors], plan.weights.replace("f32", type)
    return replace(plan, tensors=sources, config=keys, weights=name)


def write_gguf(path: Path, plan: ExportPlan, on_bytes: Callable[[int], None]) -> None:
    """Write the plan's config and tokenizer as keys, and its tensors; `on_bytes` is called with the size of every
    chunk. Raises Damaged if a source is shorter than its header says, and the errors of `tokenizer_keys`."""
    import gguf
    import numpy as np

    keys = dict(plan.config)
    architecture = keys.pop("general.architecture")
    if plan.tokenizer:
        keys |= tokenizer_keys(plan.tokenizer, keys[f"{architecture}.vocab_size"])
        if architecture == "phi3" and {*PHI3_TOKENS} <= {*keys["tokenizer.ggml.tokens"]}:
            keys["general.name"] = "Phi-3"  # by this name llama.cpp strips spaces after special tokens, as Phi-3 does
    writer = gguf.GGUFWriter(path, architecture)
    kinds = {bool: "BOOL", int: "UINT32", float: "FLOAT32", str: "STRING", list: "ARRAY"}
    for key, value in keys.items():
        writer.add_key_value(key, value, gguf.GGUFValueType[kinds[type(value)]])
    for source in plan.tensors:
        kind = gguf.GGMLQuantizationType[source.dtype]
        writer.add_tensor_info(source.name, source.shape, np.dtype(np.float32), source.size, kind)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        out = writer.fout[0]
        writer.write_padding(out, out.tell())
        for source in plan.tensors:
            write_tensor(out, source, on_bytes)
            writer.write_padding(out, source.size)
    finally:
        writer.close()
