"""`preview.json` in a data set folder: the tokens of the first conversations with their loss mask.

Written at the end of the job that made the data, so that the web server needs no tokenizer.
"""

from pathlib import Path

from speculoos.errors import SpeculoosError
from speculoos.files import write_json
from training.preview import preview
from workers.child.context import JobContext

ROWS = 20
NAME = "preview.json"


def write_preview(context: JobContext, folder: Path, base_path: str) -> None:
    """Write the preview; an error is logged and does not fail the job."""
    try:
        write_json(folder / NAME, {"rows": preview(folder, base_path, ROWS)})
    except (SpeculoosError, OSError, ValueError) as error:
        context.log(f"The preview of the loss mask could not be created: {error}", "warning")
