"""Deletes a row from the command line, and its files after the commit."""

from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from cli.console import finish
from ops.homes import open_home
from tracking import changes
from tracking.db import writing


def remove_row(find: Callable[[Session], Any], force: bool, as_json: bool) -> None:
    """Delete the row that `find` returns. Raises Conflict with its dependents, unless `force`."""
    settings = open_home()
    with writing(settings) as session:
        row = find(session)
        name, row_id = row.name, row.id
        paths = changes.delete(session, settings, row, force=force)
    freed = changes.remove_files(paths)
    finish({"deleted": row_id, "name": name, "bytes": freed}, as_json, f"Deleted {name} ({freed / 1e6:.1f} MB).")
