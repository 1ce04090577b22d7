"""The input files of an import: a local file, a built-in set, or the files of a data set on the Hub."""

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
    """Files to read; `size` in bytes unless they are one local file; `origin` for the report."""

    files: Files
    size: int | None = None
    origin: dict[str, Any] | None = None


@contextmanager
def given_files(request: ImportFile, context: JobContext) -> Iterator[InputFile]:
    """The files of a request. Downloaded files are deleted after reading, or if they are invalid."""
    if request.path.startswith(HUB):
        with _downloaded(request, context) as files:
            yield files
    elif request.path.startswith(BUILT_IN_PREFIX):
        yield InputFile(builtin.find_built_in(request.path.removeprefix(BUILT_IN_PREFIX)).file)
    else:
        yield InputFile(context.files.download_path(request.path))


@contextmanager
def _downloaded(request: ImportFile, context: JobContext) -> Iterator[InputFile]:
    """Files of the Hub, each downloaded when it is read. An interrupted attempt leaves them for the next one."""
    token, target = context.settings.hf_token, context.dataset_folder(request.dataset_id)
    listing = look_up(Location.parse(request.path), token)
    folder = target.with_name(f".{target.name}.partial")
    origin = {"repo": listing.repo, "revision": listing.revision, "files": len(listing.files)}
    try:
        yield InputFile(fetch(listing, folder, context, token), listing.size, origin)
    except BadInput:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


def remove_upload(request: ImportFile, input_file: InputFile, context: JobContext) -> None:
    """Delete an uploaded file, and the local copy of another machine's file."""
    if not isinstance(input_file.files, str):
        return
    if request.delete_after:
        Path(input_file.files).unlink(missing_ok=True)
    context.files.forget_path(request.path, input_file.files)
