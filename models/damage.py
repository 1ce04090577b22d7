"""Is a base, or a data set, still what it was? Files are compared with the sums and counts that were kept. No torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models import identity
from speculoos.errors import Damaged, SpeculoosError
from speculoos.sums import ChecksumCache, file_sha256, find_changed_files

REMAKE = "Make the data set again, or put its files back from a copy; `speculoos verify` checks all."
MEND = "Put the original files back, or bring the model here again under another name; `speculoos verify` checks all."
NO_SUMS = ChecksumCache()


@dataclass(frozen=True)
class Known:
    """Sums of a base when it was brought here; empty ones are not compared."""

    weights_sha256: str = ""
    tokenizer_sha256: str = ""
    files: tuple[tuple[str, str], ...] = ()
    """(name, sha256) of the files besides the weights, from the card."""

    @classmethod
    def of(cls, weights_sha256: str, tokenizer_sha256: str = "", card: Mapping[str, Any] | None = None) -> "Known":
        """From the columns of a base's row; cards of earlier versions name no files."""
        return cls(weights_sha256, tokenizer_sha256, tuple(sorted(((card or {}).get("files") or {}).items())))


def base_damage(folder: str | Path, known: Known, sums: ChecksumCache = NO_SUMS) -> dict[str, str]:
    """{file, or part: what is wrong with it}; empty when all is as it was."""
    folder = Path(folder)
    if not folder.is_dir():
        return {str(folder): "is gone"}
    damage = _files(folder, dict(known.files))
    if not damage and known.tokenizer_sha256:
        damage = _part("tokenizer", known.tokenizer_sha256, lambda: identity.tokenizer_sha256(folder))
    if known.weights_sha256:
        damage |= _part("weights", known.weights_sha256, lambda: weights_sum(folder, sums))
    return damage


def check_base(folder: str | Path, known: Known, sums: ChecksumCache = NO_SUMS) -> None:
    """Raise Damaged, naming the first part of the base that is not as it was."""
    for name, wrong in base_damage(folder, known, sums).items():
        raise Damaged(f"{folder}: {name} {wrong}.", MEND)


def dataset_damage(folder: str | Path, sums: ChecksumCache = NO_SUMS, rows: int | None = None) -> dict[str, str]:
    """{file: what is wrong with it} of a data set, by the sums of its shards and the rows its dataset.json counts (a
    set that was stopped has none: then `rows`).

    Sets of earlier versions have no sums: their rows are counted all the same.
    """
    folder = Path(folder)
    damage = find_changed_files(folder, sums)
    try:
        summary = identity.read_json(folder / "dataset.json")
    except SpeculoosError as error:
        return {**damage, "dataset.json": f"cannot be read ({str(error).rstrip('.')})"}
    shards, expected = sorted(folder.glob("shard-*.jsonl")), summary.get("rows", rows)
    if damage or not shards or type(expected) is not int:
        return damage
    count = int(sums.remembered(f"rows:{folder.absolute()}", shards, lambda: str(sum(map(_rows, shards)))))
    if count < expected or (count > expected and summary.get("complete", True)):
        damage["dataset.json"] = f"counts {expected} rows, the shards hold {count}"
    return damage


def check_dataset(folder: str | Path) -> None:
    """Raise Damaged, naming the first file of the data set that is not as it was written."""
    for name, wrong in dataset_damage(folder).items():
        raise Damaged(f"{Path(folder) / name} {wrong}.", REMAKE)


def _rows(shard: Path) -> int:
    with open(shard, "rb") as handle:
        return sum(1 for line in handle if line.strip())


def weights_sum(folder: Path, sums: ChecksumCache) -> str:
    """`identity.weights_sha256`, remembered. Raises BadInput for files that are damaged beyond reading."""
    files = identity.weight_files(folder)
    return sums.remembered(f"weights:{folder.absolute()}", files, lambda: identity.weights_sha256(folder))


def _files(folder: Path, known: dict[str, str]) -> dict[str, str]:
    if not known:
        return {}
    now = {path.name: path for path in identity.read_files(folder)}
    damage = {name: "is missing" for name in known if name not in now}
    for name, path in now.items():
        if name not in known:
            damage[name] = "was not there when the model came"
        elif wrong := _changed(path, known[name]):
            damage[name] = wrong
    return damage


def _changed(path: Path, digest: str) -> str:
    try:
        return "" if file_sha256(path) == digest else "was changed after the model came here, or is damaged"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def _part(part: str, digest: str, take: Callable[[], str]) -> dict[str, str]:
    try:
        return {} if take() == digest else {f"the {part}": "changed: another sha256 than when the model came"}
    except (SpeculoosError, OSError) as error:
        return {f"the {part}": f"cannot be read ({str(error).rstrip('.')})"}
