"""speculoos verify: are the files of models, checkpoints and data sets still what they were?"""

from typing import Annotated

import typer

from cli.console import Json, finish


def verify(
    references: Annotated[
        list[str] | None, typer.Argument(help="Models, MODEL@CHECKPOINT or data sets; default everything.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Take the sums of all files anew and say which are damaged and what to do; exit code 1 when any is."""
    from ops.homes import open_home
    from ops.verify import check

    findings = check(open_home(), references or ())
    damaged = [one for one in findings if one.damage]
    lines = [f"BAD {one.sentence()}" if one.damage else f"ok  {one.kind} {one.name}" for one in findings]
    end = f"{len(damaged)} of {len(findings)} damaged." if damaged else f"{len(findings)} checked, all whole."
    result = {"healthy": not damaged, "checked": len(findings), "things": [one.to_json() for one in findings]}
    finish(result, as_json, "\n".join([*lines, end]))
    return 1 if damaged else 0
