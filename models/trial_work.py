"""The steps of `models.trial`, run in a child process with limits: each may hang, crash or exhaust its memory. Loaded
objects are kept between calls.
"""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401  (imported before the child forks)

from models import convert, pickles
from models.base import LoadedBase, load_base, load_tokenizer
from models.chat import render
from speculoos.errors import BadInput, SpeculoosError

STEPS = 2


class Refusal(Exception):
    """The chat template rejects a single user message."""


_loaded: dict[str, Any] = {}


def read_tokenizer(folder: str, memory: int) -> None:
    _limit_memory(memory)
    _loaded.clear()
    _loaded["tokenizer"] = load_tokenizer(folder)


def tokenize(text: str, memory: int) -> int:
    """Encode and decode a text; returns the largest token id."""
    _limit_memory(memory)
    ids = _loaded["tokenizer"](text)["input_ids"]
    _loaded["tokenizer"].decode(ids)
    _loaded.setdefault("ids", ids[:16])
    return max(ids, default=0)


def chat(turns: list[dict[str, str]], must: bool, memory: int) -> int:
    """Render a conversation; returns the largest id. Raises Refusal if the template rejects it and `must` is set."""
    _limit_memory(memory)
    try:
        return max(render(_loaded["tokenizer"], turns), default=0)
    except BadInput as error:
        if must:
            raise Refusal(str(error)) from None
        return 0


def read_model(folder: str, dtype: str, memory: int) -> int:
    """Load the whole model; returns the rows of its embedding."""
    _limit_memory(memory)
    base: LoadedBase = load_base(folder, dtype)
    _loaded["base"] = base
    return base.embed_tokens.weight.shape[0]


@torch.inference_mode()
def generate(memory: int) -> int:
    """Generate a few tokens greedily after an ordinary text; returns the last id."""
    _limit_memory(memory)
    base: LoadedBase = _loaded["base"]
    ids = torch.tensor([_loaded["ids"] or [0]])
    for _ in range(STEPS):
        logits = base.model(input_ids=ids, use_cache=False).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return int(ids[0, -1])


def forget() -> None:
    """Free the loaded objects."""
    _loaded.clear()


def convert_gguf(file: str, folder: str, memory: int) -> dict[str, str]:
    """`models.convert.convert_gguf` within `memory` bytes."""
    _limit_memory(memory)
    try:
        return convert.convert_gguf(file, folder)
    except SpeculoosError:
        raise
    except (AttributeError, TypeError, IndexError, OverflowError, AssertionError, RecursionError) as error:
        raise BadInput(f"{Path(file).name}: damaged GGUF file ({type(error).__name__}: {error}).") from None


def convert_pickle(file: str, target: str, tied: bool, memory: int) -> None:
    """`models.pickles.convert` within `memory` bytes."""
    _limit_memory(memory)
    pickles.convert(Path(file), Path(target), tied)


def _limit_memory(memory: int) -> None:
    """Limit this process to `memory` bytes more than it uses now, at most its hard limit."""
    with suppress(OSError, StopIteration, ValueError):  # without /proc the limit of the child stays
        status = Path("/proc/self/status").read_text().splitlines()
        used = int(next(line for line in status if line.startswith("VmData")).split()[1]) * 1024
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = used + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
