"""Job `import_prompts`: imports a prompt file or a suite as a data set."""

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
from workers.child.work.input_files import InputFile, given_files, remove_upload
from workers.jobs.requests import ImportAnswered, ImportPrompts
from workers.memory import IMPORT_HINT


def run(request: ImportPrompts, context: JobContext) -> dict[str, Any]:
    """Read the file into the data set's folder and fill its row; returns the counts."""
    folder = context.dataset_folder(request.dataset_id)
    read = _suite if request.suite else _prompts
    with readable(request):
        report, source = read(request, context, folder)
    return publish(request, context, folder, report, source)


def _prompts(request: ImportPrompts, context: JobContext, folder: Path) -> tuple[dict[str, Any], InputFile]:
    with given_files(request, context) as source:
        return import_prompts(source.files, folder, context, **options(request, source, context)), source


def _suite(request: ImportPrompts, context: JobContext, folder: Path) -> tuple[dict[str, Any], InputFile]:
    """Import a suite in its own format, from the file or from the Hub."""
    check_suite(request.suite)
    name, limit = request.original_name, request.limit
    if request.path:
        with given_files(request, context) as source:
            path = str(source.files)
            return import_suite(path, folder, context, request.suite, original_name=name, limit=limit), source
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-hub-", dir=folder.parent) as download:
        file, origin = _download_suite(request.suite, context, Path(download))
        report = import_suite(file, folder, context, request.suite, original_name=file.name, limit=limit)
        return report, InputFile((), origin=origin)


def _download_suite(suite_name: str, context: JobContext, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The suite's file from the Hub, and its origin."""
    suite = SUITES[suite_name]
    hint = f"Use its file instead: {suite.form}."
    if suite.hub is None:
        raise BadInput(f"{suite.title} cannot be downloaded from the Hub.", hint)
    repo, file = suite.hub
    context.log(f"Downloading {file} from {repo} …")
    try:
        listing = look_up_file(repo, file, context.settings.hf_token)
        (path,) = fetch(listing, folder, context, context.settings.hf_token)
        return path, {"repo": repo, "revision": listing.revision, "file": file}
    except SpeculoosError as error:
        raise Unavailable(f"{suite.title} could not be downloaded. {error}", hint) from None


def options(request: ImportPrompts | ImportAnswered, source: InputFile, context: JobContext) -> dict[str, Any]:
    """Keyword arguments of `corpus.importing.import_prompts` and `import_answered`."""
    return {
        "original_name": request.original_name,
        "size": source.size,
        "mapping": request.fields,
        "limit": request.limit,
        "max_rows": context.settings.max_rows,
    }


@contextmanager
def readable(request: ImportPrompts | ImportAnswered) -> Iterator[None]:
    """Turns MemoryError into OutOfMemory with the name of the file."""
    try:
        yield
    except MemoryError:
        name = request.original_name or Path(request.path).name
        raise OutOfMemory(f"The memory was not enough to read {name}.", IMPORT_HINT) from None


def publish(
    request: ImportPrompts | ImportAnswered,
    context: JobContext,
    folder: Path,
    report: dict[str, Any],
    source: InputFile,
) -> dict[str, Any]:
    """Fill the data set's row and delete an upload; returns the counts."""
    report = report if source.origin is None else {**report, "hub": source.origin}
    counts = {"rows": report["rows"], "bad_rows": report["bad_rows"]}
    context.publish(Dataset, request.dataset_id, state="ready", path=str(folder), report=report, **counts)
    remove_upload(request, source, context)
    return {"dataset_id": request.dataset_id, "rows_read": report["rows_read"], **counts}
