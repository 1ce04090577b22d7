"""What the prompts' limited child runs (serving/prompts.py): foreign templates and tokenizers, of all bases in turn.

Never imported elsewhere: it keeps torch out of its process, which tokenizers do not need and which would make the child
three times as large and as slow to start.
"""

import os
import sys
from collections import OrderedDict
from typing import Any

assert "torch" not in sys.modules, "this is for a child process"
sys.modules["torch"] = None  # type: ignore[assignment]
os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it says that there is no torch

from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402, F401 (once, before copies are made)

from models import foreign  # noqa: E402
from models.chat import to_ids, to_text  # noqa: E402
from speculoos.errors import BadInput  # noqa: E402

KEPT = 8
TRIED = "Write a long story about a lighthouse keeper who learns to sail."
_tokenizers: OrderedDict[tuple[str, str], Any] = OrderedDict()


def load(path: str, sha256: str) -> None:
    """Make the tokenizer of the base in `path` ready. Tries a text, and what the device's thread tokenizes."""
    if (path, sha256) not in _tokenizers:
        tokenizer = _read(path)
        tokenizer.decode([*tokenizer(TRIED)["input_ids"], *tokenizer.encode("a", add_special_tokens=False)])
        _tokenizers[path, sha256] = tokenizer
    _tokenizers.move_to_end((path, sha256))
    if len(_tokenizers) > KEPT:
        _tokenizers.popitem(last=False)


def write(path: str, sha256: str, messages: list[dict[str, str]]) -> tuple[str, bool]:
    """See `models.chat.to_text`."""
    load(path, sha256)
    return to_text(_tokenizers[path, sha256], messages)


def encode(path: str, sha256: str, text: str, templated: bool) -> list[int]:
    """See `models.chat.to_ids`."""
    load(path, sha256)
    return to_ids(_tokenizers[path, sha256], text, templated)


def _read(path: str) -> Any:
    """As `models.base.load_tokenizer`, which comes with torch."""
    try:
        with foreign.shown(path, weights=False) as view:
            return AutoTokenizer.from_pretrained(view, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise BadInput(f"{path}: its tokenizer could not be read ({first}).") from None
