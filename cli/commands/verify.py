"""`speculoos verify`: compares the files of models, checkpoints and data sets with their checksums."""

from typing import Annotated

import typer

from cli.console import Json, finish
from ops.homes import open_home


def verify(
    references: Annotated[
        list[str] | None, typer.Argument(help="Models, MODEL@CHECKPOINT or data sets; default: all.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Hash all files again and list the damaged ones with a hint; exit code 1 if there are any."""
    from ops.verify import check

    findings = check(open_home(), references or ())
    damaged = [one for one in findings if one.damage]
    lines = [f"BAD {one.sentence()}" if one.damage else f"ok  {one.kind} {one.name}" for one in findings]
    end = f"{len(damaged)} of {len(findings)} damaged." if damaged else f"{len(findings)} checked, none damaged."
    result = {"healthy": not damaged, "checked": len(findings), "things": [one.to_json() for one in findings]}
    finish(result, as_json, "\n".join([*lines, end]))
    return 1 if damaged else 0
