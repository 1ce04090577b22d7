"""The tokenizer and end-of-sequence ids of a model folder. No torch at import."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from models import untrusted
from models.identity import read_json
from speculoos.errors import BadInput


def load_tokenizer(path: str | Path) -> Any:
    """The folder's tokenizer. Raises BadInput when it cannot be read."""
    with untrusted.sanitised_folder(path, weights=False) as clean:
        return read_tokenizer(clean, Path(path))


def read_tokenizer(clean: Path, folder: Path) -> Any:
    """The tokenizer in `clean`, the sanitised copy of `folder`."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(clean, trust_remote_code=False, local_files_only=True)
    except BaseException as error:  # a Rust panic in tokenizers is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise BadInput(f"{folder}: its tokenizer could not be read ({first_line(error, clean)}).") from None
    tokenizer.name_or_path = str(folder)
    return tokenizer


def read_eos_ids(folder: str | Path, tokenizer: Any) -> frozenset[int]:
    """`LoadedBase.eos_ids` of a model folder, without loading weights."""
    files = (read_json(Path(folder) / name) for name in ("generation_config.json", "config.json"))
    return token_ids([*(file.get("eos_token_id") for file in files), tokenizer.eos_token_id])


def token_ids(values: Iterable[Any]) -> frozenset[int]:
    """Token ids in values that are an id, a list of ids or None. Raises BadInput for an invalid id."""
    lists = [value if isinstance(value, list | tuple) else [value] for value in values if value is not None]
    ids = [i for some in lists for i in some]
    if wrong := [i for i in ids if type(i) is not int]:
        raise BadInput(f"eos_token_id: expected a token id or a list of them, got {str(wrong[0])[:40]!r}.")
    return frozenset(ids)


def first_line(error: BaseException, clean: Path) -> str:
    """First line of an error of transformers, without the path `clean`."""
    text = str(error).replace(f"{clean}/", "").replace(str(clean), "the folder").strip().splitlines()
    return text[0].rstrip(".")[:300] if text else type(error).__name__
