"""Output of commands: the result on standard output (with --json one object, the last line), messages on stderr."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

import typer

from speculoos.errors import SpeculoosError

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, the last line of the output.")]
Wait = Annotated[bool, typer.Option("--wait", help="Follow the job to its end.")]


def listed(help: str) -> typer.Typer:
    """A command group that runs its `list` command when no subcommand is given."""
    app = typer.Typer(invoke_without_command=True, help=help)

    @app.callback()
    def without_command(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            (show_all,) = (command.callback for command in app.registered_commands if command.name == "list")
            show_all()

    return app


def say(text: str) -> None:
    """Print a message to standard error."""
    print(text, file=sys.stderr, flush=True)


def finish(result: Mapping[str, Any] | Sequence[Any], as_json: bool, text: str = "") -> None:
    """Print the result, as JSON or as `text`."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False, default=str), flush=True)
    elif text:
        print(text, flush=True)


def fail(error: SpeculoosError, as_json: bool) -> int:
    """Print an error to standard error (with --json also as an object to standard output); returns the exit code."""
    say(f"{error} {error.hint}".strip())
    if as_json:
        print(json.dumps({"error": {"code": error.code, "message": str(error), "hint": error.hint}}), flush=True)
    return error.exit_code


def table(rows: Iterable[Sequence[Any]], heads: Sequence[str]) -> str:
    """Rows as aligned columns; "(none)" without rows."""
    cells = [[str(cell) if cell is not None else "" for cell in row] for row in rows]
    if not cells:
        return "(none)"
    lines = [list(heads), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def figures(result: Mapping[str, Any]) -> str:
    """`name  value` lines for a flat result."""
    width, lines = max(len(name) for name in result), []
    for name, value in result.items():
        if isinstance(value, dict | list):
            value = json.dumps(value, ensure_ascii=False)
        lines.append(f"{name.ljust(width)}  {f'{value:.4g}' if isinstance(value, float) else value}")
    return "\n".join(lines)
