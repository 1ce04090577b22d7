"""`speculoos cleanup`: applies the retention rules."""

from typing import Annotated

import typer

from cli.console import Json, finish, table
from ops.homes import open_home


def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")] = False,
    leftovers: Annotated[
        bool, typer.Option("--leftovers", help="Also remove unused files in the home that are older than a day.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Apply the retention rules of the settings; the reconciler does the same every hour."""
    from ops import retention

    removed = retention.clean(open_home(), dry_run=dry_run, leftovers=leftovers)
    result = {rule: {"count": part.count, "bytes": part.bytes} for rule, part in removed.items()}
    rows = [(rule, part.count, f"{part.bytes / 1e6:,.1f} MB") for rule, part in removed.items()]
    finish({"dry_run": dry_run, "removed": result}, as_json, table(rows, ("rule", "number", "size")))
