"""Integrity checks of bases and datasets against stored checksums and row counts. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from models import identity
from speculoos.checksums import ChecksumCache, file_sha256, find_changed_files
from speculoos.errors import Damaged, SpeculoosError

DATASET_HINT = "Create the dataset again, or restore its files from a copy; `speculoos verify` checks all."
BASE_HINT = "Restore the original files, or add the model again under another name; `speculoos verify` checks all."
UNSAVED = ChecksumCache()  # in this process only, not in a file


@dataclass(frozen=True)
class BaseChecksums:
    """Checksums of a base when it was added; empty ones are not compared."""

    weights_sha256: str = ""
    tokenizer_sha256: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """(name, sha256) of the files besides the weights, from the card."""

    @classmethod
    def of(cls, weights_sha256: str, tokenizer_sha256: str = "", card: Mapping[str, Any] | None = None) -> Self:
        """From the columns of a base's row; cards of earlier versions list no files."""
        return cls(weights_sha256, tokenizer_sha256, tuple(sorted(((card or {}).get("files") or {}).items())))


def base_problems(folder: str | Path, known: BaseChecksums, cache: ChecksumCache = UNSAVED) -> dict[str, str]:
    """{file or part: problem}; empty when nothing changed."""
    folder = Path(folder)
    if not folder.is_dir():
        return {str(folder): "is missing"}
    files, problems = dict(known.files), {}
    for name, digest in files.items():
        problems |= _compare(name, digest, lambda name=name: file_sha256(folder / name))
    if files:
        present = {path.name for path in identity.read_files(folder)}
        problems |= dict.fromkeys(present - files.keys(), "was not there when the model was added")
    if not problems and known.tokenizer_sha256:
        problems = _compare("the tokenizer", known.tokenizer_sha256, lambda: identity.tokenizer_sha256(folder))
    if known.weights_sha256:
        problems |= _compare("the weights", known.weights_sha256, lambda: weights_sum(folder, cache))
    return problems


def check_base(folder: str | Path, known: BaseChecksums, cache: ChecksumCache = UNSAVED) -> None:
    """Raise Damaged naming the first part of the base that changed."""
    for name, problem in base_problems(folder, known, cache).items():
        raise Damaged(f"{folder}: {name} {problem}.", BASE_HINT)


def dataset_problems(folder: str | Path, cache: ChecksumCache = UNSAVED, rows: int | None = None) -> dict[str, str]:
    """{file: problem} of a dataset, by the checksums of its shards and the row count in dataset.json, or `rows` when
    dataset.json has none (stopped jobs). Datasets of earlier versions have no checksums; their rows are still counted.
    """
    folder = Path(folder)
    problems = find_changed_files(folder, cache)
    try:
        summary = identity.read_json(folder / "dataset.json")
    except SpeculoosError as error:
        return {**problems, "dataset.json": f"cannot be read ({str(error).rstrip('.')})"}
    shards, expected = sorted(folder.glob("shard-*.jsonl")), summary.get("rows", rows)
    if problems or not shards or type(expected) is not int:
        return problems
    count = int(cache.remembered(f"rows:{folder.absolute()}", shards, lambda: str(sum(map(_rows, shards)))))
    if count < expected or (count > expected and summary.get("complete", True)):
        problems["dataset.json"] = f"counts {expected} rows, the shards hold {count}"
    return problems


def check_dataset(folder: str | Path) -> None:
    """Raise Damaged naming the first file of the dataset that changed."""
    for name, problem in dataset_problems(folder).items():
        raise Damaged(f"{Path(folder) / name} {problem}.", DATASET_HINT)


def _rows(shard: Path) -> int:
    with open(shard, "rb") as handle:
        return sum(1 for line in handle if line.strip())


def weights_sum(folder: Path, cache: ChecksumCache) -> str:
    """Cached `identity.weights_sha256`. Raises BadInput for files that cannot be read."""
    files = [*identity.weight_files(folder), *folder.glob("config.json")]
    return cache.remembered(f"weights:{folder.absolute()}", files, lambda: identity.weights_sha256(folder))


def _compare(part: str, digest: str, compute: Callable[[], str]) -> dict[str, str]:
    try:
        return {} if compute() == digest else {part: "changed: its sha256 differs from the added model's"}
    except FileNotFoundError:
        return {part: "is missing"}
    except (SpeculoosError, OSError) as error:
        return {part: f"cannot be read ({str(error).rstrip('.')})"}
