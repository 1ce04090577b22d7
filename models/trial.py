"""Test an untrusted model before it is added: tokenizer, chat template and a short generation, in a child process with
time and memory limits. Errors name the file that caused a timeout, a crash or too much memory. No torch at import.
"""

import functools
import string
from pathlib import Path
from typing import Any

from models import identity
from speculoos import resources
from speculoos.errors import BadInput, SpeculoosError, Unavailable
from speculoos.limited import ChildError, LimitedChild, LimitExceeded
from speculoos.reporting import Reporter, check_stop

READ_SECONDS, TEXT_SECONDS, TEMPLATE_SECONDS = 120.0, 10.0, 10.0
LOAD_SECONDS, BYTES_PER_SECOND = 180.0, 20e6
"""Time limit for loading: LOAD_SECONDS + bytes / BYTES_PER_SECOND, enough for a slow disk."""
ANSWER_SECONDS, PARAMETERS_PER_SECOND = 120.0, 1e7
CONVERT_SECONDS, GGUF_BYTES_PER_SECOND = 300.0, 1e6
TEXT_MEMORY = 1 << 30
"""Bytes allowed in addition to those below."""
FILE_MEMORY, MODEL_MEMORY, GGUF_MEMORY = 40, 1.5, 24
"""Bytes allowed per byte of the tokenizer files, of the weights, of a GGUF file."""
PICKLE_MEMORY = 2
"""Bytes allowed per byte of a pickle: it is loaded or mapped, and tensors that share memory are copied."""
MOST_PARAMETERS = 15e9
LENGTH = 20_000
RUNS = {"letters": "a", "spaces": " ", "line breaks": "\n", "digits": "1", "dots": ".", "characters": "字"}
RUN_ENDINGS = {"": "", " and all keyboard characters": f"! {string.printable}"}
"""Some regular expressions are slow only when a certain character follows a long run."""
TEXTS = {
    "an ordinary text": "The quick brown fox jumps over the lazy dog. 1 + 1 = 2; naïve café, 你好, 🦊!\n" * 4,
    "a mixed text": "aA1 .,;!?\t\n'-_/<>\\\u0301\u200d🦊é字" * (LENGTH // 25),
    **{
        f"a run of {what}{more}": sign * LENGTH + end
        for what, sign in RUNS.items()
        for more, end in RUN_ENDINGS.items()
    },
}
QUESTION = {"role": "user", "content": "Why is the sky blue?"}
CHATS = {
    "a question": [QUESTION],
    "a question after a system text": [{"role": "system", "content": "Be brief."}, QUESTION],
    "a longer chat": [QUESTION, {"role": "assistant", "content": "It scatters blue light."}, QUESTION],
}
WORK_MODULE = "models.trial_work"


def try_model(folder: Path, name: str, card: dict[str, Any], reporter: Reporter) -> None:
    """Load and use the model in `folder` in a child process with limits. Raises BadInput or Unsupported, naming the
    file at fault."""
    reporter.log("Testing the model: tokenizer, chat template, a short generation …")
    trial = _Trial(folder, name, reporter)
    try:
        largest = trial.tokenizer()
        rows = trial.model(card)
        if rows is not None and largest >= rows:
            raise BadInput(
                f"{name}: {trial.vocabulary} gives token ids up to {largest}, the weights have {rows} tokens; "
                "restore the tokenizer that belongs to them."
            )
        if rows is not None:
            trial.answer(card)
    finally:
        trial.forget()


def convert(file: Path, folder: Path) -> dict[str, str]:
    """`models.convert.convert_gguf` in a child process with limits, since a GGUF file sets sizes and tokenizer."""
    size = file.stat().st_size
    seconds, memory = CONVERT_SECONDS + size / GGUF_BYTES_PER_SECOND, 2 * TEXT_MEMORY + GGUF_MEMORY * size
    try:
        return _child().call(f"{WORK_MODULE}:convert_gguf", str(file), str(folder), memory, seconds=seconds)
    except LimitExceeded as error:
        raise BadInput(f"{file.name}: this GGUF file cannot be converted: {_reason(error, seconds)}.") from None
    except ChildError as error:
        raise BadInput(f"{file.name}: this GGUF file cannot be converted ({error.kind}: {error}).") from None


def convert_pickle(file: Path, target: Path, tied: bool) -> None:
    """`models.pickles.convert` in a child process with limits. Raises BadInput, naming the file."""
    size = file.stat().st_size
    seconds, memory = CONVERT_SECONDS + size / BYTES_PER_SECOND, TEXT_MEMORY + PICKLE_MEMORY * size
    mend = "the file is damaged, or this machine has too little memory for it"
    try:
        _child().call(f"{WORK_MODULE}:convert_pickle", str(file), str(target), tied, memory, seconds=seconds)
    except LimitExceeded as error:
        raise BadInput(f"{file.name}: converting this pickle {_reason(error, seconds)}; {mend}.") from None
    except ChildError as error:
        raise BadInput(f"{file.name}: converting this pickle failed ({error.kind}: {_short(error)}); {mend}.") from None


class _Trial:
    """The tests of one model. Errors of each step name the file that it uses."""

    def __init__(self, folder: Path, name: str, reporter: Reporter):
        self.folder, self.name, self.reporter = folder, name, reporter
        self.files = [path for path in identity.read_files(folder) if path.name in identity.TOKENIZER_FILES]
        self.memory = TEXT_MEMORY + FILE_MEMORY * sum(path.stat().st_size for path in self.files)

    @property
    def vocabulary(self) -> str:
        """Name of the main tokenizer file."""
        return self.files[0].name if self.files else "the tokenizer"

    def tokenizer(self) -> int:
        """Tokenize texts and chats; returns the largest token id."""
        mend = "restore the tokenizer that the model came with"
        blame = f"{self.vocabulary}: reading the tokenizer"
        self._call("read_tokenizer", str(self.folder), self.memory, seconds=READ_SECONDS, blame=blame, mend=mend)
        mend = "its pattern or normalizer is at fault: " + mend
        ids = []
        for what, text in TEXTS.items():
            blame = f"{self.vocabulary}: turning {what} into tokens"
            ids.append(self._call("tokenize", text, self.memory, seconds=TEXT_SECONDS, blame=blame, mend=mend))
        return max(ids + self._chats())

    def _chats(self) -> list[int]:
        """A template must render a single user message; it may reject other chats, such as a system message."""
        file, ids = identity.template_file(self.folder), []
        for what, turns in CHATS.items() if file else ():
            blame, mend = f"{file.name}: rendering {what}", "correct the chat template, or restore the model's own"
            arguments = (turns, turns == [QUESTION], TEXT_MEMORY)
            ids.append(self._call("chat", *arguments, seconds=TEMPLATE_SECONDS, blame=blame, mend=mend))
        return ids

    def model(self, card: dict[str, Any]) -> int | None:
        """Load the model; returns the rows of its embedding, or None when memory is too small."""
        width = 4 if card["dtype"] in ("float32", "float64") else 2
        memory = int(TEXT_MEMORY + MODEL_MEMORY * max(width * card["parameters"], card["size_bytes"]))
        if card["parameters"] > MOST_PARAMETERS or memory > (free := resources.available_memory()[0]):
            self.reporter.log("The model is too large for a test; only its tokenizer was tested.", "warning")
            return None
        dtype = "float32" if width == 4 else "bfloat16"
        return self._call(
            *("read_model", str(self.folder), dtype, min(memory, free)),
            seconds=LOAD_SECONDS + card["size_bytes"] / BYTES_PER_SECOND,
            blame="config.json: loading the model",
            mend="a size in it does not match the weights: restore the file that came with them",
        )

    def answer(self, card: dict[str, Any]) -> None:
        """Generate a few tokens."""
        seconds = ANSWER_SECONDS + card["parameters"] / PARAMETERS_PER_SECOND
        mend = "restore the config.json that came with the weights"
        self._call("generate", 2 * TEXT_MEMORY, seconds=seconds, blame="config.json: a short generation", mend=mend)

    def forget(self) -> None:
        """Free the memory of the child."""
        try:
            _child().call(f"{WORK_MODULE}:forget", seconds=TEXT_SECONDS)
        except SpeculoosError:
            _child().close()

    def _call(self, function: str, *arguments: Any, seconds: float, blame: str, mend: str) -> Any:
        check_stop(self.reporter)
        try:
            return _child().call(f"{WORK_MODULE}:{function}", *arguments, seconds=seconds)
        except LimitExceeded as error:
            raise BadInput(f"{self.name}: {blame} {_reason(error, seconds)}; {mend}.") from None
        except Unavailable as error:
            if "memory" not in str(error):
                raise
            raise BadInput(f"{self.name}: {blame} took more memory than it may; {mend}.") from None
        except ChildError as error:
            raise BadInput(f"{self.name}: {blame} failed ({error.kind}: {_short(error)}); {mend}.") from None
        except SpeculoosError as error:
            raise type(error)(str(error).replace(str(self.folder), self.name), error.hint) from None


def _reason(error: LimitExceeded, seconds: float) -> str:
    if error.reason == "time":
        return f"did not end within {seconds:.0f} s"
    return "took more memory than it may" + (" or crashed" if error.reason == "crash" else "")


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:400].rstrip(".")


@functools.cache
def _child() -> LimitedChild:
    """One child for all tests of this process; it imports torch once."""
    return LimitedChild(resources.available_memory()[0], (WORK_MODULE,))
