"""Code of the limited child process of serving/prompts.py: untrusted chat templates and tokenizers of all base models.

Import it in that child only, because it blocks the import of torch: tokenizers do not need torch, and with it the child
would be three times as large and as slow to start.
"""

import os
import sys
from collections import OrderedDict
from typing import Any

assert "torch" not in sys.modules, "import this module in a child process only"
sys.modules["torch"] = None  # type: ignore[assignment]
os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it warns that torch is missing

from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402, F401 (imported before forking)

from models import foreign  # noqa: E402
from models.chat import to_ids, to_text  # noqa: E402
from speculoos.errors import BadInput  # noqa: E402

MAX_TOKENIZERS = 8
WARM_UP_TEXT = "Write a long story about a lighthouse keeper who learns to sail."
_tokenizers: OrderedDict[tuple[str, str], Any] = OrderedDict()


def load(path: str, sha256: str) -> None:
    """Load and warm up the tokenizer of the base model in `path`."""
    if (path, sha256) not in _tokenizers:
        tokenizer = _read(path)
        tokenizer.decode([*tokenizer(WARM_UP_TEXT)["input_ids"], *tokenizer.encode("a", add_special_tokens=False)])
        _tokenizers[path, sha256] = tokenizer
    _tokenizers.move_to_end((path, sha256))
    if len(_tokenizers) > MAX_TOKENIZERS:
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
    try:
        with foreign.sanitised_folder(path, weights=False) as view:
            return AutoTokenizer.from_pretrained(view, trust_remote_code=False, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise BadInput(f"{path}: its tokenizer could not be read ({first}).") from None
