"""Job `import_prompts`: a prompt file becomes a data set."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corpus.importing import import_prompts
from speculoos.errors import OutOfMemory
from tracking.tables import Dataset
from workers.ask.requests import ImportAnswered, ImportPrompts
from workers.child.context import Context
from workers.memory import IMPORT_HINT


def run(request: ImportPrompts, context: Context) -> dict[str, Any]:
    """Read the file into the data set's folder and fill its row; returns the counts."""
    folder = context.dataset_folder(request.dataset_id)
    with readable(request):
        report = import_prompts(request.path, folder, context, **options(request, context))
    return publish(request, context, folder, report)


def options(request: ImportPrompts | ImportAnswered, context: Context) -> dict[str, Any]:
    """How a file is read."""
    most = context.settings.max_rows
    return {"original_name": request.original_name, "limit": request.limit, "max_rows": most}


@contextmanager
def readable(request: ImportPrompts | ImportAnswered) -> Iterator[None]:
    """A file that means more than the memory holds is said to be one."""
    try:
        yield
    except MemoryError:
        name = request.original_name or Path(request.path).name
        raise OutOfMemory(f"The memory was not enough to read {name}.", IMPORT_HINT) from None


def publish(
    request: ImportPrompts | ImportAnswered, context: Context, folder: Path, report: dict[str, Any]
) -> dict[str, Any]:
    """Fill the data set's row, remove an upload; returns the counts."""
    counts = {"rows": report["rows"], "bad_rows": report["bad_rows"]}
    context.publish(Dataset, request.dataset_id, state="ready", path=str(folder), report=report, **counts)
    if request.delete_after:
        Path(request.path).unlink(missing_ok=True)
    return {"dataset_id": request.dataset_id, "rows_read": report["rows_read"], **counts}
