"""A standalone draft as transformers loads it."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from formats.checkpoint import CheckpointFiles


def huggingface(folder: Path, checkpoint: CheckpointFiles) -> Any:
    """AutoModelForCausalLM.from_pretrained in float32. Raises ValueError for missing or unexpected weights."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False, output_loading_info=True
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if names := sorted(map(str, info[kind])):
            raise ValueError(f"model.safetensors: {kind.replace('_', ' ')}: {names[0]}.")
    return model.eval()
