"""Test an untrusted model before it is added: tokenizer, chat template and a short generation, in a child process with
time and memory limits. Errors name the file that caused a timeout, a crash or too much memory. No torch at import."""

import functools
from pathlib import Path
from typing import Any

from models import identity
from speculoos import resources
from speculoos.errors import BadInput
from speculoos.limited import ChildError, LimitedChild, LimitExceeded
from speculoos.reporting import Reporter, check_stop

READ_SECONDS, TEXT_SECONDS, TEMPLATE_SECONDS = 120.0, 60.0, 20.0
LOAD_SECONDS, BYTES_PER_SECOND, PARAMETERS_PER_SECOND = 300.0, 20e6, 1e7
"""Time limit for loading and generating: LOAD_SECONDS + bytes and parameters divided by these, enough for a slow
disk."""
CONVERT_SECONDS, GGUF_BYTES_PER_SECOND = 300.0, 1e6
TEXT_MEMORY = 1 << 30
"""Bytes allowed in addition to those below."""
FILE_MEMORY, MODEL_MEMORY, GGUF_MEMORY, PICKLE_MEMORY = 40, 1.5, 24, 2
"""Bytes allowed per byte of the tokenizer files, of the weights, of a GGUF file, of a pickle (which is loaded or
mapped, and tensors that share memory are copied)."""
MOST_PARAMETERS = 15e9
WORK_MODULE = "models.trial_work"
DAMAGED_FILE = "the file is damaged, or this machine has too little memory for it"
LIMIT_REASONS = {
    "time": "did not end within {:.0f} s",
    "memory": "exceeded its memory limit",
    "crash": "exceeded its memory limit or crashed",
}


def try_model(folder: Path, name: str, card: dict[str, Any], reporter: Reporter) -> None:
    """Load and use the model in `folder` in a child process with limits. Raises BadInput or Unsupported, naming the
    file at fault."""
    reporter.log("Testing the model: tokenizer, chat template, a short generation …")
    files = [path for file in identity.TOKENIZER_FILES if (path := folder / file).is_file()]
    vocabulary = files[0].name if files else "the tokenizer"
    memory = TEXT_MEMORY + FILE_MEMORY * sum(path.stat().st_size for path in files)
    blame, mend = f"{name}: {vocabulary}: reading the tokenizer", "restore the tokenizer that the model came with"
    _call("read_tokenizer", str(folder), memory, seconds=READ_SECONDS, blame=blame, mend=mend)
    blame, mend = f"{name}: {vocabulary}: turning texts into tokens", f"its pattern or normalizer is at fault: {mend}"
    largest = _call("tokenize", seconds=TEXT_SECONDS, blame=blame, mend=mend)
    if template := identity.template_file(folder):
        blame, mend = f"{name}: {template.name}: rendering a chat", "correct the chat template, or restore its original"
        largest = max(largest, _call("render_chats", seconds=TEMPLATE_SECONDS, blame=blame, mend=mend))
    check_stop(reporter)
    rows = _generate(folder, name, card, reporter)
    if rows is not None and largest >= rows:
        raise BadInput(
            f"{name}: {vocabulary} gives token ids up to {largest}, the weights have {rows} tokens; "
            "restore the tokenizer that belongs to them."
        )


def _generate(folder: Path, name: str, card: dict[str, Any], reporter: Reporter) -> int | None:
    """Load the model and generate; returns the rows of its embedding, or None when memory is too small."""
    parameters, width = card["parameters"], 4 if card["dtype"] in ("float32", "float64") else 2
    memory = int(TEXT_MEMORY + MODEL_MEMORY * max(width * parameters, card["size_bytes"]))
    if parameters > MOST_PARAMETERS or memory > (free := resources.available_memory()[0]):
        reporter.log("The model is too large for a test; only its tokenizer was tested.", "warning")
        return None
    seconds = LOAD_SECONDS + card["size_bytes"] / BYTES_PER_SECOND + parameters / PARAMETERS_PER_SECOND
    blame = f"{name}: config.json: loading the model"
    mend = "a size in it does not match the weights: restore the file that came with them"
    arguments = str(folder), "float32" if width == 4 else "bfloat16", min(2 * TEXT_MEMORY + memory, free)
    return _call("generate", *arguments, seconds=seconds, blame=blame, mend=mend)


def convert(file: Path, folder: Path) -> dict[str, str]:
    """`models.trial_work.convert_gguf` in a child process with limits, since a GGUF file sets sizes and tokenizer."""
    size = file.stat().st_size
    arguments = str(file), str(folder), 2 * TEXT_MEMORY + GGUF_MEMORY * size
    seconds, blame = CONVERT_SECONDS + size / GGUF_BYTES_PER_SECOND, f"{file.name}: converting this file"
    return _call("convert_gguf", *arguments, seconds=seconds, blame=blame, mend=DAMAGED_FILE)


def convert_pickle(file: Path, target: Path, tied: bool) -> None:
    """`models.pickles.convert` in a child process with limits. Raises BadInput, naming the file."""
    size = file.stat().st_size
    memory, seconds = TEXT_MEMORY + PICKLE_MEMORY * size, CONVERT_SECONDS + size / BYTES_PER_SECOND
    arguments, blame = (str(file), str(target), tied, memory), f"{file.name}: converting this pickle"
    _call("convert_pickle", *arguments, seconds=seconds, blame=blame, mend=DAMAGED_FILE)


def _call(function: str, *arguments: Any, seconds: float, blame: str, mend: str) -> Any:
    try:
        return _child().call(f"{WORK_MODULE}:{function}", *arguments, seconds=seconds)
    except LimitExceeded as error:
        reason = LIMIT_REASONS[error.reason].format(seconds)
    except ChildError as error:
        message = (str(error).strip().splitlines() or [error.kind])[0][:400].rstrip(".")
        reason = f"failed ({error.kind}: {message})"
    raise BadInput(f"{blame} {reason}; {mend}.")


@functools.cache
def _child() -> LimitedChild:
    """One child for all tests of this process; it imports torch once."""
    return LimitedChild(resources.available_memory()[0], (WORK_MODULE,))
