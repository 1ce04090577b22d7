"""Check that a generation by the local base fits on the disk and in memory, before the start.

More exact than the estimate of the page, since the base is loaded and prompts can be tokenised.
"""

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from corpus.conversations import GenerateOptions, to_answer
from models.base import LoadedBase
from speculoos import resources
from speculoos.errors import Unavailable

SAMPLE = 64
BYTES_PER_TOKEN = 14
"""Bytes of a stored token: text, and id in JSON (measured: 13.6 on English answers of the starter model)."""
SPARE_DISK = 200 * 10**6


def check_needs(base: LoadedBase, source: str | Path, options: GenerateOptions, rows: int, folder: str | Path) -> str:
    """A sentence on what the answers to `rows` prompts take. Raises Unavailable when there is not enough disk space or
    memory.

    Extrapolates from the turns and tokens of the first 64 prompts. Memory is two KV caches of a full batch (a batch is
    copied when rows change) and one prefill's activations: 2 · batch · length · (2 · layers · key width) · bytes, plus
    batch · prompt · 8 · hidden · bytes.
    """
    sample = list(islice(to_answer(source, options, set()), SAMPLE))
    turns = [len(c.users) for c in sample] or [1]
    lengths = [sum(_tokens(base, text) for text in (c.system, *c.users)) + 16 * len(c.users) for c in sample] or [0]
    tokens = round(rows * sum(turns) / len(turns) * options.max_tokens)
    disk = round((tokens + rows * sum(lengths) / len(lengths)) * BYTES_PER_TOKEN)
    size = torch.empty((), dtype=base.dtype).element_size()
    length = min(max(lengths) + max(turns) * options.max_tokens, base.max_length)
    cache = 2 * options.batch_size * length * _cache_width(base.config) * size
    memory = cache + options.batch_size * max(lengths) * 8 * base.hidden_size * size
    free = shutil.disk_usage(folder).free
    if disk + SPARE_DISK > free:
        raise Unavailable(
            f"The answers may take {disk / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB left; "
            "use fewer prompts or tokens, or free some space."
        )
    cuda = base.device.type == "cuda"
    available = torch.cuda.mem_get_info(base.device)[0] if cuda else resources.available_memory()[0]
    if memory > available:
        raise Unavailable(
            f"A batch may take {memory / 1e6:,.0f} MB of memory and {available / 1e6:,.0f} MB are free; "
            "choose a smaller batch size or fewer tokens."
        )
    return (
        f"{rows} prompts, at most {tokens:,} new tokens: up to {disk / 1e6:,.0f} MB of disk and "
        f"{memory / 1e6:,.0f} MB of memory in addition to the model."
    )


def _tokens(base: LoadedBase, text: str) -> int:
    try:
        return len(base.tokenizer(text)["input_ids"])
    except ValueError:
        return len(text)


def _cache_width(config: Any) -> int:
    heads = config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * (getattr(config, "num_key_value_heads", None) or heads) * size
