"""More rows into a data set that is in use: they gather beside it, and come in together when all are there."""

import shutil
from pathlib import Path

from corpus.shards import SUMMARY, shard_files
from speculoos.files import link_or_copy
from speculoos.sums import SUMS


def begin(folder: Path, work: Path) -> Path:
    """A folder `work` that holds what data set `folder` holds, and what an earlier attempt added to that. Its writer
    goes on there; the data set stays as it is."""
    work.mkdir(parents=True, exist_ok=True)
    if not (work / SUMS).exists():
        for file in [*shard_files(folder), *(path for path in [folder / SUMS] if path.exists())]:
            link_or_copy(file, work / file.name)
    return work


def land(work: Path, folder: Path) -> None:
    """Bring what `work` holds into data set `folder`, its sums and its summary last. Done twice it changes nothing."""
    for file in [*shard_files(work), work / SUMS, work / SUMMARY]:
        link_or_copy(file, folder / file.name)
    shutil.rmtree(work.parent, ignore_errors=True)
