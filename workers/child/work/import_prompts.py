"""Jobs `import_prompts` and `import_answered`: import a file of prompts, a suite, or conversations as a dataset."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from corpus.importing import import_answered, import_prompts
from corpus.rows import Files
from evaluation.suites import check_suite, import_suite, installed_file
from models.hub_data import Location, fetch, look_up, look_up_file
from models.tokenizer import load_tokenizer, read_eos_ids
from speculoos.errors import BadInput, OutOfMemory, SpeculoosError, Unavailable
from speculoos.suites import SUITES
from tracking.tables import Base, Dataset
from training.masks import mask_conversation
from workers.child.context import JobContext
from workers.child.work.generate_data import write_preview
from workers.jobs import builtin
from workers.jobs.requests import ImportAnswered, ImportPrompts
from workers.jobs.transfers import BUILT_IN_PREFIX, HUB, ImportFile
from workers.memory import IMPORT_HINT

COUNTED = ("tokens", "answer_tokens", "cut_answers")


@dataclass(frozen=True)
class InputFile:
    """Files to read; `size` in bytes unless they are one local file; `origin` for the report."""

    files: Files
    size: int | None = None
    origin: dict[str, Any] | None = None


def run(request: ImportPrompts | ImportAnswered, context: JobContext) -> dict[str, Any]:
    """Read the file into the dataset's folder, fill its row and delete an upload; returns the counts."""
    folder = context.dataset_folder(request.dataset_id)
    read = _answered if isinstance(request, ImportAnswered) else _suite if request.suite else _prompts
    try:
        report, source = read(request, context, folder)
    except MemoryError:
        name = request.original_name or Path(request.path).name
        raise OutOfMemory(f"The memory was not enough to read {name}.", IMPORT_HINT) from None
    if source.origin is not None:
        report = {**report, "hub": source.origin}
    counts = {"rows": report["rows"], "bad_rows": report["bad_rows"]}
    context.update_output(Dataset, request.dataset_id, state="ready", path=str(folder), report=report, **counts)
    if isinstance(source.files, str):
        if request.delete_after:
            Path(source.files).unlink(missing_ok=True)
        context.files.delete_uploaded_input(request.path, source.files)
    more = {key: report[key] for key in COUNTED} if isinstance(request, ImportAnswered) else {}
    return {"dataset_id": request.dataset_id, "rows_read": report["rows_read"], **counts, **more}


def _prompts(request: ImportPrompts, context: JobContext, folder: Path) -> tuple[dict[str, Any], InputFile]:
    with _input_files(request, context) as source:
        return import_prompts(source.files, folder, context, **_options(request, source, context)), source


def _answered(request: ImportAnswered, context: JobContext, folder: Path) -> tuple[dict[str, Any], InputFile]:
    base = context.input_with_files(Base, request.base_id)
    tokenizer = load_tokenizer(base.path)
    masking = partial(mask_conversation, tokenizer=tokenizer, eos_ids=read_eos_ids(base.path, tokenizer))
    with _input_files(request, context) as source:
        options = _options(request, source, context)
        checksums = {"base_sha256": base.weights_sha256, "tokenizer_sha256": base.tokenizer_sha256}
        report = import_answered(source.files, folder, masking, context, **options, **checksums)
    write_preview(context, folder, base.path)
    return report, source


def _suite(request: ImportPrompts, context: JobContext, folder: Path) -> tuple[dict[str, Any], InputFile]:
    check_suite(request.suite)
    name, limit = request.original_name, request.limit
    if request.path:
        with _input_files(request, context) as source:
            path = str(source.files)
            return import_suite(path, folder, context, request.suite, original_name=name, limit=limit), source
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-hub-", dir=folder.parent) as download:
        file, origin = _download_suite(request.suite, context, Path(download))
        report = import_suite(file, folder, context, request.suite, original_name=file.name, limit=limit)
        return report, InputFile((), origin=origin)


def _download_suite(suite_name: str, context: JobContext, folder: Path) -> tuple[Path, dict[str, Any]]:
    """(file, origin) of a suite, from an installed package or from the Hub."""
    suite = SUITES[suite_name]
    hint = f"Use its file instead: {suite.form}."
    if installed := installed_file(suite_name):
        context.log(f"Reading {installed.name} of the installed package {suite.package[0]}.")
        return installed, {"package": suite.package[0], "file": installed.name}
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


def _options(request: ImportFile, source: InputFile, context: JobContext) -> dict[str, Any]:
    return {
        "original_name": request.original_name,
        "size": source.size,
        "mapping": request.fields,
        "limit": request.limit,
        "max_rows": context.settings.max_rows,
    }


@contextmanager
def _input_files(request: ImportFile, context: JobContext) -> Iterator[InputFile]:
    """The files of a request. Those of the Hub are downloaded when they are read, and deleted after it or if they are
    invalid; an interrupted attempt leaves them for the next one."""
    if request.path.startswith(BUILT_IN_PREFIX):
        yield InputFile(builtin.find_built_in(request.path.removeprefix(BUILT_IN_PREFIX)).file)
        return
    if not request.path.startswith(HUB):
        yield InputFile(context.files.download_path(request.path))
        return
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
