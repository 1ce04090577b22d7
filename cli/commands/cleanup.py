"""speculoos cleanup: what nobody needs any more, by the rules of the settings."""

from typing import Annotated

import typer

from cli.console import Json, finish, table
from speculoos.errors import Conflict
from speculoos.settings import Settings


def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, remove nothing.")] = False,
    leftovers: Annotated[
        bool, typer.Option("--leftovers", help="Files in the home that no row names, too (older than a day).")
    ] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Write SQLite's file anew without holes; nothing may run meanwhile.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove what the settings say is kept no longer; the reconciler does the same every hour."""
    from ops import retention
    from ops.homes import open_home

    settings = open_home()
    removed = retention.clean(settings, dry_run=dry_run, leftovers=leftovers)
    result = {rule: {"count": part.count, "bytes": part.bytes} for rule, part in removed.items()}
    rows = [(rule, part.count, f"{part.bytes / 1e6:,.1f} MB") for rule, part in removed.items()]
    if compact and not dry_run:
        result["database"] = {"count": 0, "bytes": (freed := _compact(settings))}
        rows.append(("database", "", f"{freed / 1e6:,.1f} MB"))
    finish({"dry_run": dry_run, "removed": result}, as_json, table(rows, ("what", "number", "size")))


def _compact(settings: Settings) -> int:
    from cli.launch.homelock import HomeLock
    from ops.retention import compact

    lock = HomeLock(settings)
    if not lock.acquire("cleanup", ()):
        raise Conflict("The workbench runs, and would have to wait for long; stop it, then compact the database.")
    try:
        return compact(settings)
    finally:
        lock.release()
