"""Whether a draft's tokenizer, where it brings one, is its base's: token ids of another mean other texts."""

from pathlib import Path

from models import identity
from models.base import load_tokenizer
from speculoos.errors import BadInput, Unsupported

VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


def check_tokenizer(folder: Path, name: str, base: Path, base_name: str) -> str:
    """Raise Unsupported where the folder's tokenizer gives a token another id than the base's does. Returns a notice
    where it cannot be read; "" else, also where there is none."""
    files = [folder / file for file in VOCABULARIES if (folder / file).is_file()]
    if not files or all(_same_file(file, base / file.name) for file in files):
        return ""
    theirs = _vocabulary(files)
    if theirs is None:
        return f"{files[0].name}: cannot be compared with the tokenizer of {base_name} and was left out."
    ours = load_tokenizer(base).get_vocab()
    wrong = next((token for token, number in sorted(theirs.items()) if ours.get(token) != number), None)
    if wrong is not None:
        raise Unsupported(
            f"{name}/{files[0].name}: is another tokenizer than that of {base_name}: {wrong!r} is token "
            f"{theirs[wrong]} and there {ours.get(wrong, 'none')}; choose the base the draft was trained for."
        )
    return ""


def _same_file(one: Path, other: Path) -> bool:
    return other.is_file() and one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()


def _vocabulary(files: list[Path]) -> dict[str, int] | None:
    """Tokens and ids of the first file that can be read without a config."""
    for file in files:
        if file.name == "tokenizer.json":
            return _of_tokenizers(file)
        if file.name == "vocab.json":
            entries = identity.read_json(file)
            return {token: number for token, number in entries.items() if type(number) is int}
        if file.name == "vocab.txt":
            return {line: number for number, line in enumerate(file.read_text(encoding="utf-8").splitlines())}
    return None


def _of_tokenizers(file: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    except BaseException as error:  # a panic of the tokenizers' Rust is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit | MemoryError):
            raise
        raise BadInput(f"{file.name}: the draft's tokenizer cannot be read ({str(error)[:120]}).") from None
