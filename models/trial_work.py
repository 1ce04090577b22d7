"""What a trial does with a foreign model, in a limited child (see `models.trial`): every function here may never end,
crash, or take all the memory it is given. The module keeps what was loaded between calls.
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
    """The chat template cannot take a plain question."""


_kept: dict[str, Any] = {}


def read_tokenizer(folder: str, memory: int) -> None:
    """Load the tokenizer."""
    _allow(memory)
    _kept.clear()
    _kept["tokenizer"] = load_tokenizer(folder)


def tokenize(text: str, memory: int) -> int:
    """Text to ids and back; returns the largest id."""
    _allow(memory)
    ids = _kept["tokenizer"](text)["input_ids"]
    _kept["tokenizer"].decode(ids)
    _kept.setdefault("ids", ids[:16])
    return max(ids, default=0)


def chat(turns: list[dict[str, str]], must: bool, memory: int) -> int:
    """Render a conversation; returns the largest id. Raises Refusal where the template refuses what it `must` take."""
    _allow(memory)
    try:
        return max(render(_kept["tokenizer"], turns), default=0)
    except BadInput as error:
        if must:
            raise Refusal(str(error)) from None
        return 0


def read_model(folder: str, dtype: str, memory: int) -> int:
    """Load the whole model; returns the rows of its embedding."""
    _allow(memory)
    base: LoadedBase = load_base(folder, dtype)
    _kept["base"] = base
    return base.embed_tokens.weight.shape[0]


@torch.inference_mode()
def generate(memory: int) -> int:
    """A few greedy tokens after an ordinary text; returns the last one."""
    _allow(memory)
    base: LoadedBase = _kept["base"]
    ids = torch.tensor([_kept["ids"] or [0]])
    for _ in range(STEPS):
        logits = base.model(input_ids=ids, use_cache=False).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
    return int(ids[0, -1])


def forget() -> None:
    """Give the memory back."""
    _kept.clear()


def convert_gguf(file: str, folder: str, memory: int) -> dict[str, str]:
    """`models.convert.convert_gguf`, with `memory` bytes."""
    _allow(memory)
    try:
        return convert.convert_gguf(file, folder)
    except SpeculoosError:
        raise
    except (AttributeError, TypeError, IndexError, OverflowError, AssertionError, RecursionError) as error:
        raise BadInput(f"{Path(file).name}: damaged GGUF file ({type(error).__name__}: {error}).") from None


def convert_pickle(file: str, target: str, tied: bool, memory: int) -> None:
    """`models.pickles.convert`, with `memory` bytes."""
    _allow(memory)
    pickles.convert(Path(file), Path(target), tied)


def _allow(memory: int) -> None:
    """Let this process have `memory` bytes more than it has now, within what the child may have at all."""
    with suppress(OSError, StopIteration, ValueError):  # systems without /proc keep the child's own limit
        status = Path("/proc/self/status").read_text().splitlines()
        used = int(next(line for line in status if line.startswith("VmData")).split()[1]) * 1024
        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        limit = used + memory
        resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))
