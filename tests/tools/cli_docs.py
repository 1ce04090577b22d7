"""Generates docs/cli.md from the commands: `python -m tests.tools.cli_docs > docs/cli.md`."""

from collections.abc import Iterator
from typing import Any

import typer.main

from cli.main import add_custom_commands, app

HEAD = """# Commands
Every command works with nothing running: it uses the home's services when they are up, else starts what it needs and
stops it again. `--wait` follows a job to its end; with nothing running a job is always followed. `--estimate` prints
time, disk and memory that a job would take, and starts nothing. `--json` prints the
result as one line of JSON (lists an array, all else an object), the last of standard output; progress goes to standard
error. An error is one sentence on standard error (with `--json` also `{"error": {"code", "message", "hint"}}` on
standard output). Exit codes: 0 success, 1 failure, 2 invalid input, 70 internal error, 130 interrupted. This page is
written by `python -m tests.tools.cli_docs`.
"""


def commands(node: Any, path: tuple[str, ...] = ("speculoos",)) -> Iterator[tuple[str, Any]]:
    """Every command with its full name, in the order of the help."""
    if not hasattr(node, "commands"):
        yield " ".join(path), node
        return
    for name, child in node.commands.items():
        yield from commands(child, (*path, name))


def section(name: str, command: Any) -> str:
    """A command's heading, help text, and table of arguments and options."""
    lines = [f"\n## {name}", (command.help or "").strip(), ""]
    rows = [_row(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        lines += ["| | default | |", "| --- | --- | --- |", *rows]
    return "\n".join(lines).rstrip() + "\n"


def _row(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    name = parameter.name.upper() if argument else ", ".join(parameter.opts)
    default = "required" if parameter.required else _default(parameter.default)
    return f"| `{name}` | {default} | {parameter.help or ''} |".replace("  ", " ")


def _default(value: Any) -> str:
    return "" if value is None or value is False or value in ("", []) else f"`{value}`"


def page() -> str:
    """The whole page."""
    return HEAD + "".join(section(name, command) for name, command in commands(typer.main.get_command(app)))


if __name__ == "__main__":
    add_custom_commands()
    print(page(), end="")
