"""Compare a draft's tokenizer, if it has one, with the base model's."""

from pathlib import Path

from models import identity
from models.base import load_tokenizer
from speculoos.errors import BadInput, Unsupported

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def check_tokenizer(folder: Path, name: str, base: Path, base_name: str) -> str:
    """Raise Unsupported if a token has different ids in the folder's tokenizer and in the base model's. Returns a
    notice if the tokenizer cannot be compared, else ""; also "" if the folder has no tokenizer."""
    files = [folder / file for file in VOCABULARIES if (folder / file).is_file()]
    if not files or all(_same_file(file, base / file.name) for file in files):
        return ""
    actual = _vocabulary(files)
    if actual is None:
        return f"{files[0].name}: cannot be compared with the tokenizer of {base_name} and was ignored."
    expected = load_tokenizer(base).get_vocab()
    wrong = next((token for token, number in sorted(actual.items()) if expected.get(token) != number), None)
    if wrong is not None:
        raise Unsupported(
            f"{name}/{files[0].name}: differs from the tokenizer of {base_name}: the id of {wrong!r} is "
            f"{actual[wrong]}, not {expected.get(wrong, 'none')}; choose the base model the draft was trained for."
        )
    return ""


def _same_file(one: Path, other: Path) -> bool:
    return other.is_file() and one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _vocabulary(files: list[Path]) -> dict[str, int] | None:
    """Token ids by token, from the first file that can be read without a config; None if there is none."""
    for file in files:
        if file.name == "tokenizer.json":
            return _tokenizer_vocabulary(file)
        if file.name == "vocab.json":
            entries = identity.read_json(file)
            return {token: number for token, number in entries.items() if type(number) is int}
        if file.name == "vocab.txt":
            return {line: number for number, line in enumerate(file.read_text(encoding="utf-8").splitlines())}
    return None


def _tokenizer_vocabulary(file: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except BaseException as error:  # a Rust panic in tokenizers is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise BadInput(f"{file.name}: the draft's tokenizer cannot be read ({str(error)[:120]}).") from None
