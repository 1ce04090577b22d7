"""A checkpoint as one zip: model.safetensors, config.json, README.md and SHA256SUMS. No torch."""

import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from speculoos.errors import Damaged, NotFound
from speculoos.files import new_path, portable_name
from speculoos.sums import CHECKSUM_FILE, ChecksumCache, checksums_text, find_changed_files

WEIGHTS = "model.safetensors"
FILES = (WEIGHTS, "config.json", "generation_config.json", "README.md", CHECKSUM_FILE)
CHUNK = 1 << 20


def archive_name(base: str, checkpoint: str) -> str:
    """A file name every system takes, such as `starter-my-heads.zip`."""
    return portable_name(f"{base}-{checkpoint}") + ".zip"


def write_zip(folder: str | Path, target: str | Path) -> Path:
    """The checkpoint in `folder` as a zip, whole or not at all. SHA256SUMS is made when the folder has none."""
    files = archive_files(Path(folder))
    return zip_files(
        files, Path(target), {} if Path(folder, CHECKSUM_FILE).exists() else {CHECKSUM_FILE: checksums_text(files)}
    )


def zip_files(
    files: Iterable[Path],
    target: Path,
    texts: Mapping[str, str] | None = None,
    passed: Callable[[int], None] = lambda _: None,
    folder: str = "",
) -> Path:
    """A zip of `files`, side by side or in a `folder`, and of further `texts`; whole or not at all, in the memory of
    one piece. `passed` hears of every number of bytes. Weights do not compress, so nothing is."""
    inside = f"{folder}/" if folder else ""
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_path(target) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for path in files:
            info = zipfile.ZipInfo.from_file(path, inside + path.name)
            info.external_attr = 0o100644 << 16
            with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as out:
                while piece := source.read(CHUNK // 2):  # the last one is held meanwhile
                    out.write(piece)
                    passed(len(piece))
        for name, text in (texts or {}).items():
            archive.writestr(inside + name, text)
    return target


def archive_files(folder: Path) -> list[Path]:
    """The files that belong in the zip. Raises NotFound when the weights are gone."""
    if not (folder / WEIGHTS).is_file():
        raise NotFound(f"The files of this checkpoint are gone ({folder}); train it again or restore the folder.")
    return [folder / name for name in FILES if (folder / name).is_file()]


def damage(folder: str | Path, sha256: str = "", taken: ChecksumCache | None = None) -> dict[str, str]:
    """{file: what is wrong with it} of a checkpoint, by its SHA256SUMS and its row's `sha256` of the weights; empty
    when all is well. `taken` remembers sums."""
    folder, taken = Path(folder), taken or ChecksumCache()
    if not (folder / WEIGHTS).is_file():
        return {WEIGHTS: "is missing"}
    damage = find_changed_files(folder, taken)
    if sha256 and WEIGHTS not in damage and taken.of_file(folder / WEIGHTS) != sha256:
        damage[WEIGHTS] = "is not the file that was trained (its sha256 differs)"
    return damage


def check(folder: str | Path, name: str, sha256: str = "", taken: ChecksumCache | None = None) -> None:
    """Raise Damaged when a checkpoint must not be given away, NotFound when its files are gone."""
    archive_files(Path(folder))
    for file, wrong in damage(folder, sha256, taken).items():
        raise Damaged(
            f"The checkpoint {name!r} is damaged: {file} {wrong}; train it again, or restore {folder} from a copy."
        )
