"""The steps of `models.trial`, run in a child process with limits: each may hang, crash or exhaust its memory. The
tokenizer is kept between calls.
"""

import resource
import string
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: F401  (imported before the child forks)

from models import convert, pickles
from models.base import load_base, load_tokenizer
from models.chat import render
from speculoos.errors import BadInput, Unavailable

STEPS = 2
LENGTH = 20_000
RUN_ENDINGS = ("", f"! {string.printable}")
"""Some regular expressions are slow only when a certain character follows a long run."""
TEXTS = (
    "The quick brown fox jumps over the lazy dog. 1 + 1 = 2; naïve café, 你好, 🦊!\n" * 4,
    "aA1 .,;!?\t\n'-_/<>\\\u0301\u200d🦊é字" * (LENGTH // 25),
    *(sign * LENGTH + end for sign in ("a", " ", "\n", "1", ".", "字") for end in RUN_ENDINGS),
)
QUESTION = {"role": "user", "content": "Why is the sky blue?"}
CHATS = (
    [{"role": "system", "content": "Be brief."}, QUESTION],
    [QUESTION, {"role": "assistant", "content": "It scatters blue light."}, QUESTION],
)


class Refusal(Exception):
    """The chat template rejects a single user message."""


_loaded: dict[str, Any] = {}


def read_tokenizer(folder: str, memory: int) -> None:
    _limit_memory(memory)
    _loaded.clear()
    _loaded["tokenizer"] = load_tokenizer(folder)


def tokenize() -> int:
    """Encode and decode texts; returns the largest token id."""
    tokenizer, largest = _loaded["tokenizer"], 0
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        tokenizer.decode(ids)
        largest = max(largest, *ids)
    return largest


def render_chats() -> int:
    """Render chats; returns the largest token id. Raises Refusal if the template rejects a single user message; it may
    reject other chats."""
    try:
        largest = max(render(_loaded["tokenizer"], [QUESTION]), default=0)
    except BadInput as error:
        raise Refusal(str(error)) from None
    for turns in CHATS:
        with suppress(BadInput):
            largest = max(largest, *render(_loaded["tokenizer"], turns))
    return largest


@torch.inference_mode()
def generate(folder: str, dtype: str, memory: int) -> int:
    """Load the whole model and generate a few tokens greedily; returns the rows of its embedding."""
    _limit_memory(memory)
    try:
        base = load_base(folder, dtype)
    except Unavailable:
        raise MemoryError from None
    ids = torch.tensor([base.tokenizer(TEXTS[0])["input_ids"][:16] or [0]])
    rows = base.embed_tokens.weight.shape[0]
    for _ in range(STEPS if ids.max() < rows else 0):
        logits = base.model(input_ids=ids, use_cache=False).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return rows


def convert_gguf(file: str, folder: str, memory: int) -> dict[str, str]:
    _limit_memory(memory)
    return convert.convert_gguf(file, folder)


def convert_pickle(file: str, target: str, tied: bool, memory: int) -> None:
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
