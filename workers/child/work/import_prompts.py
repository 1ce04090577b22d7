"""Job `import_prompts`: a prompt file, or a suite's, becomes a data set."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corpus.importing import import_prompts
from evaluation.suites import check_suite, import_suite
from models.hub_data import fetch, look_up_file
from speculoos.errors import BadInput, OutOfMemory, SpeculoosError, Unavailable
from speculoos.suites import SUITES
from tracking.tables import Dataset
from workers.child.context import JobContext
from workers.child.work.given_files import InputFile, given_files, remove_upload
from workers.jobs.requests import ImportAnswered, ImportPrompts
from workers.memory import IMPORT_HINT


def run(request: ImportPrompts, context: JobContext) -> dict[str, Any]:
    """Read the file into the data set's folder and fill its row; returns the counts."""
    folder = context.dataset_folder(request.dataset_id)
    read = _suite if request.suite else _prompts
    with readable(request):
        report, given = read(request, context, folder)
    return publish(request, context, folder, report, given)


def _prompts(request: ImportPrompts, context: JobContext, folder: Path) -> tuple[dict[str, Any], InputFile]:
    with given_files(request, context) as given:
        return import_prompts(given.files, folder, context, **options(request, given, context)), given


def _suite(request: ImportPrompts, context: JobContext, folder: Path) -> tuple[dict[str, Any], InputFile]:
    """Strictly in the suite's form, from the file or from the hub."""
    check_suite(request.suite)
    asked = {"original_name": request.original_name, "limit": request.limit}
    if request.path:
        with given_files(request, context) as given:
            return import_suite(str(given.files), folder, context, request.suite, **asked), given
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-hub-", dir=folder.parent) as place:
        path, origin = _fetched(request.suite, context, Path(place))
        report = import_suite(path, folder, context, request.suite, **{**asked, "original_name": path.name})
        return report, InputFile((), origin=origin)


def _fetched(suite: str, context: JobContext, place: Path) -> tuple[Path, dict[str, Any]]:
    """The suite's file of the hub, and where that is there."""
    wanted = SUITES[suite]
    form = f"Give its file instead: {wanted.form}."
    if wanted.hub is None:
        raise BadInput(f"{wanted.title} is not fetched from the hub.", form)
    repo, file = wanted.hub
    context.log(f"Fetching {file} of {repo} …")
    try:
        listing = look_up_file(repo, file, context.settings.hf_token)
        (path,) = fetch(listing, place, context, context.settings.hf_token)
        return path, {"repo": repo, "revision": listing.revision, "file": file}
    except SpeculoosError as error:
        raise Unavailable(f"{wanted.title} could not be fetched. {error}", form) from None


def options(request: ImportPrompts | ImportAnswered, given: InputFile, context: JobContext) -> dict[str, Any]:
    """How files are read."""
    limits = {"limit": request.limit, "max_rows": context.settings.max_rows}
    return {"original_name": request.original_name, "size": given.size, "mapping": request.fields, **limits}


@contextmanager
def readable(request: ImportPrompts | ImportAnswered) -> Iterator[None]:
    """A file that means more than the memory holds is said to be one."""
    try:
        yield
    except MemoryError:
        name = request.original_name or Path(request.path).name
        raise OutOfMemory(f"The memory was not enough to read {name}.", IMPORT_HINT) from None


def publish(
    request: ImportPrompts | ImportAnswered, context: JobContext, folder: Path, report: dict[str, Any], given: InputFile
) -> dict[str, Any]:
    """Fill the data set's row, remove an upload; returns the counts."""
    report = report if given.origin is None else {**report, "hub": given.origin}
    counts = {"rows": report["rows"], "bad_rows": report["bad_rows"]}
    context.publish(Dataset, request.dataset_id, state="ready", path=str(folder), report=report, **counts)
    remove_upload(request, given, context)
    return {"dataset_id": request.dataset_id, "rows_read": report["rows_read"], **counts}
