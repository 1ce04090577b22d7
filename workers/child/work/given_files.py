"""The files an import reads: one here, one that comes with the workbench, or those of a data set on the hub."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.rows import Files
from models.hub_data import Location, fetch, look_up
from speculoos.errors import BadInput
from workers.child.context import JobContext
from workers.jobs import builtin
from workers.jobs.import_prompts import BUILT_IN_PREFIX, HUB, ImportFile


@dataclass(frozen=True)
class InputFile:
    """Files to read, their bytes where they are not one file here, and what the report says of where they came from."""

    files: Files
    size: int | None = None
    origin: dict[str, Any] | None = None


@contextmanager
def given_files(request: ImportFile, context: JobContext) -> Iterator[InputFile]:
    """What the request names. Fetched files go when they have been read, or turned out to be none that can be."""
    if request.path.startswith(HUB):
        with _fetched(request, context) as given:
            yield given
    elif request.path.startswith(BUILT_IN_PREFIX):
        yield InputFile(builtin.find_built_in(request.path.removeprefix(BUILT_IN_PREFIX)).file)
    else:
        yield InputFile(context.files.bring_path(request.path))


@contextmanager
def _fetched(request: ImportFile, context: JobContext) -> Iterator[InputFile]:
    """From the hub, each file when its turn comes; what is here after a break is kept for the next attempt."""
    token, place = context.settings.hf_token, context.dataset_folder(request.dataset_id)
    listing = look_up(Location.parse(request.path), token)
    folder = place.with_name(f".{place.name}.partial")
    origin = {"repo": listing.repo, "revision": listing.revision, "files": len(listing.files)}
    try:
        yield InputFile(fetch(listing, folder, context, token), listing.size, origin)
    except BadInput:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def remove_upload(request: ImportFile, given: InputFile, context: JobContext) -> None:
    """One that was uploaded is ours to remove, and so is what was brought here for this job."""
    if not isinstance(given.files, str):
        return
    if request.delete_after:
        Path(given.files).unlink(missing_ok=True)
    context.files.forget_path(request.path, given.files)
