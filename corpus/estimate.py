"""Estimate a generation's disk and memory usage, and check it before the start.

More exact than the estimate of the page, since the base is loaded and prompts can be tokenised.
"""

import shutil
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from corpus.conversations import GenerateOptions, to_answer
from models.base import LoadedBase
from speculoos import resources
from speculoos.errors import SpeculoosError, Unavailable

SAMPLE = 64
BYTES_PER_TOKEN = 14
"""Bytes of a stored token: text, and id in JSON (measured: 13.6 on English answers of the starter model)."""
SPARE_DISK = 200 * 10**6


@dataclass(frozen=True)
class Needs:
    """Rows to answer, maximum new tokens, bytes of disk, and bytes of memory in addition to the loaded base."""

    rows: int
    tokens: int
    disk: int
    memory: int

    def sentence(self) -> str:
        return (
            f"{self.rows} prompts, at most {self.tokens:,} new tokens: up to {self.disk / 1e6:,.0f} MB of disk and "
            f"{self.memory / 1e6:,.0f} MB of memory in addition to the model."
        )


def estimate_needs(base: LoadedBase, source: str | Path, options: GenerateOptions, rows: int) -> Needs:
    """Extrapolate from the turns and tokens of the first 64 prompts.

    Memory is two KV caches of a full batch (a batch is copied when rows change) and one prefill's activations:
    2 · batch · length · (2 · layers · key width) · bytes, plus batch · prompt · 8 · hidden · bytes.
    """
    sample = list(islice(to_answer(source, options, set()), SAMPLE))
    turns = sum(len(c.users) for c in sample) / max(len(sample), 1)
    lengths = [sum(_tokens(base, text) for text in (c.system, *c.users)) + 16 * len(c.users) for c in sample] or [0]
    prompt, longest = sum(lengths) / len(lengths), max(lengths)
    turns_max = max(len(c.users) for c in sample) if sample else 1
    length = min(longest + turns_max * options.max_tokens, base.max_length)
    size = torch.empty((), dtype=base.dtype).element_size()
    cache = 2 * options.batch_size * length * _cache_width(base.config) * size
    prefill = options.batch_size * longest * 8 * base.hidden_size * size
    tokens = round(rows * turns * options.max_tokens)
    return Needs(rows, tokens, round((tokens + rows * prompt) * BYTES_PER_TOKEN), round(cache + prefill))


def check_needs(needed: Needs, base: LoadedBase, folder: str | Path) -> None:
    """Raise Unavailable when there is not enough disk space or memory."""
    free = shutil.disk_usage(Path(folder)).free
    if needed.disk + SPARE_DISK > free:
        raise Unavailable(
            f"The answers may take {needed.disk / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB left; "
            "use fewer prompts or tokens, or free some space."
        )
    memory = _free_memory(base.device)
    if needed.memory > memory:
        raise Unavailable(
            f"A batch may take {needed.memory / 1e6:,.0f} MB of memory and {memory / 1e6:,.0f} MB are free; "
            "choose a smaller batch size or fewer tokens."
        )


def _tokens(base: LoadedBase, text: str) -> int:
    try:
        return len(base.tokenizer(text)["input_ids"])
    except (ValueError, SpeculoosError):
        return len(text)


def _cache_width(config: Any) -> int:
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return resources.available_memory()[0]
