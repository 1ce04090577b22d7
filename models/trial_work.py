"""The steps of `models.trial`, run in a child process with limits: each may hang, crash or exhaust its memory. The
tokenizer is kept between calls."""

import contextlib
import io
import resource
import string
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from models import pickles
from models.base import load_base, load_tokenizer
from models.chat import render
from speculoos.errors import BadInput, Unavailable, Unsupported, first_line

STEPS = 2
FLOAT32_UP_TO = 2_000_000_000
"""Parameters of a GGUF file; larger models are saved in bfloat16."""
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
    """The chat template rejects a single user message. The user reads the name of this class in the message."""


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


def convert_gguf(file: str | Path, folder: str | Path, memory: int | None = None) -> dict[str, str]:
    """De-quantize `file` into `folder` (which must exist): weights, config, generation config, tokenizer. Weights are
    float32, or bfloat16 above two billion parameters. Returns the file's `general.*` metadata (name, license, …).
    Raises BadInput for a damaged file, Unsupported for an architecture without a loader. Without `memory`, the file is
    trusted."""
    import gguf

    if memory is not None:
        _limit_memory(memory)
    file = Path(file).resolve()
    try:
        reader = gguf.GGUFReader(str(file))
    except (ValueError, OSError, IndexError, KeyError) as error:
        raise BadInput(f"{file}: damaged GGUF file ({error}); fetch it again.") from None
    parameters = sum(int(tensor.n_elements) for tensor in reader.tensors)
    dtype = torch.float32 if parameters <= FLOAT32_UP_TO else torch.bfloat16
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name, "local_files_only": True}
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # hides progress bars that no option turns off
            model = AutoModelForCausalLM.from_pretrained(dtype=dtype, **source)
            tokenizer = AutoTokenizer.from_pretrained(**source)
    except (ValueError, KeyError, NotImplementedError, OSError, RuntimeError) as error:
        raise Unsupported(f"{file.name}: this GGUF file cannot be converted ({first_line(error)}).") from None
    _save_unquantized(model, tokenizer, Path(folder))
    return {
        name.removeprefix("general."): str(field.contents())
        for name, field in reader.fields.items()
        if name.startswith("general.") and field.types == [gguf.GGUFValueType.STRING]
    }


def _save_unquantized(model: Any, tokenizer: Any, folder: Path) -> None:
    """save_pretrained rejects a model with a quantization config, so its tensors move to a new model without one."""
    plain = model.config.to_dict()
    plain.pop("quantization_config", None)
    plain.pop("_name_or_path", None)
    plain["architectures"] = [type(model).__name__]
    with torch.device("meta"):
        bare = type(model)(type(model.config).from_dict(plain))
    bare.load_state_dict(model.state_dict(), assign=True)
    bare.tie_weights()
    bare.generation_config = model.generation_config
    with contextlib.redirect_stderr(io.StringIO()):
        bare.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


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
