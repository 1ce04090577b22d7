"""Add rows to a data set in use: they are collected in a work folder and moved in together at the end."""

import shutil
from pathlib import Path

from corpus.shards import SUMMARY, shard_files
from speculoos.checksums import CHECKSUM_FILE
from speculoos.files import link_or_copy


def begin_extension(folder: Path, work: Path) -> Path:
    """Prepare the folder `work` with the content of data set `folder`, plus the rows of an earlier attempt, for a
    writer to continue. The data set itself is not changed."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / CHECKSUM_FILE).exists():
        for file in [*shard_files(folder), *(path for path in [folder / CHECKSUM_FILE] if path.exists())]:
            link_or_copy(file, work / file.name)
    return work


def finish_extension(work: Path, folder: Path) -> None:
    """Move the content of `work` into data set `folder`, checksums and summary last. Idempotent."""
    for file in [*shard_files(work), work / CHECKSUM_FILE, work / SUMMARY]:
        link_or_copy(file, folder / file.name)
    shutil.rmtree(work.parent, ignore_errors=True)
