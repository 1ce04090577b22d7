"""A standalone draft as transformers reads it: the model of the folder, and its tokenizer's identity."""

from pathlib import Path
from typing import Any

from formats import streamed
from formats.checkpoint import CheckpointFiles
from formats.readers.weights import KEPT


def huggingface(folder: Path, checkpoint: CheckpointFiles) -> Any:
    """AutoModelForCausalLM.from_pretrained, in float32; a large one is built empty and fetches its weights layer by
    layer. Raises ValueError for weights that are missing or left over."""
    import torch
    from transformers import AutoModelForCausalLM

    if (folder / "model.safetensors").stat().st_size > KEPT:
        return streamed.model(folder)
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info[kind])):
            raise ValueError(f"model.safetensors: {kind.replace('_', ' ')}: {names[0]}.")
    return model.eval()
