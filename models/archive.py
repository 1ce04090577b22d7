"""A checkpoint as one zip: model.safetensors, config.json, README.md and SHA256SUMS. No torch."""

import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from speculoos.checksums import CHECKSUM_FILE, ChecksumCache, checksums_text, find_changed_files
from speculoos.errors import Damaged, NotFound
from speculoos.files import new_path, portable_name

WEIGHTS = "model.safetensors"
CHECKPOINT_FILES = (WEIGHTS, "config.json", "generation_config.json", "README.md", CHECKSUM_FILE)
CHUNK = 1 << 20


def archive_name(base: str, checkpoint: str) -> str:
    """A file name that is valid on every system, such as `starter-my-heads.zip`."""
    return portable_name(f"{base}-{checkpoint}") + ".zip"


def write_zip(folder: str | Path, target: str | Path) -> Path:
    """Write the checkpoint in `folder` as a zip, atomically. Creates SHA256SUMS when the folder has none."""
    files = archive_files(Path(folder))
    texts = {} if Path(folder, CHECKSUM_FILE).exists() else {CHECKSUM_FILE: checksums_text(files)}
    return zip_files(files, Path(target), texts)


def zip_files(
    files: Iterable[Path],
    target: Path,
    texts: Mapping[str, str] | None = None,
    passed: Callable[[int], None] = lambda _: None,
    folder: str = "",
) -> Path:
    """Write `files` and `texts` ({name: content}) to a zip, optionally inside `folder`. Atomic, one chunk at a
    time, uncompressed (weights do not compress). `passed` is called with the bytes of each chunk."""
    prefix = f"{folder}/" if folder else ""
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_path(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for path in files:
            info = zipfile.ZipInfo.from_file(path, prefix + path.name)
            info.external_attr = 0o100644 << 16
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as out:
                while chunk := source.read(CHUNK // 2):  # two chunks are in memory at a time
                    out.write(chunk)
                    passed(len(chunk))
        for name, text in (texts or {}).items():
            archive.writestr(prefix + name, text)
    return target


def archive_files(folder: Path) -> list[Path]:
    """The files that belong in the zip. Raises NotFound when the weights are missing."""
    if not (folder / WEIGHTS).is_file():
        raise NotFound(f"The files of this draft are missing ({folder}); train it again or restore the folder.")
    return [folder / name for name in CHECKPOINT_FILES if (folder / name).is_file()]


def checkpoint_problems(folder: str | Path, sha256: str = "", cache: ChecksumCache | None = None) -> dict[str, str]:
    """{file: problem} of a checkpoint, by its SHA256SUMS and the `sha256` of the weights in the database; empty when
    nothing is wrong. `cache` caches checksums."""
    folder, cache = Path(folder), cache or ChecksumCache()
    if not (folder / WEIGHTS).is_file():
        return {WEIGHTS: "is missing"}
    problems = find_changed_files(folder, cache)
    if sha256 and WEIGHTS not in problems and cache.of_file(folder / WEIGHTS) != sha256:
        problems[WEIGHTS] = "is not the file that was trained (its sha256 differs)"
    return problems


def check_checkpoint_files(folder: str | Path, name: str, sha256: str = "", cache: ChecksumCache | None = None) -> None:
    """Raise Damaged when a file of the checkpoint is damaged, NotFound when its weights are missing."""
    archive_files(Path(folder))
    for file, problem in checkpoint_problems(folder, sha256, cache).items():
        raise Damaged(
            f"The draft {name!r} is damaged: {file} {problem}; train it again, or restore {folder} from a copy."
        )
