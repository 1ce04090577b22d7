"""`preview.json` in a data set folder: the first conversations as tokens saw them, the loss mask visible.

Written at the end of the job that made the data, so that the web needs no tokenizer.
"""

from pathlib import Path

from speculoos.errors import SpeculoosError
from speculoos.files import write_json
from training.preview import preview
from workers.child.context import JobContext

ROWS = 20
NAME = "preview.json"


def write_preview(context: JobContext, folder: Path, base_path: str) -> None:
    """Write it; a preview that cannot be made is a line in the log and no reason to fail."""
    try:
        write_json(folder / NAME, {"rows": preview(folder, base_path, ROWS)})
    except (SpeculoosError, OSError, ValueError) as error:
        context.log(f"No preview of the loss mask could be made: {error}", "warning")
