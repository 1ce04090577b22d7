"""The `speculoos` command: registers the commands of cli/commands and prints errors as one sentence."""

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Annotated

import typer
from typer import _click

from cli.commands import (
    backup,
    data,
    endpoints,
    evaluate,
    export,
    features,
    generate,
    jobs,
    keys,
    matrix,
    models,
    plan,
    push,
    quickstart,
    replay,
    servers,
    services,
    train,
    tune,
)
from cli.commands.fields import kind_command
from cli.console import fail
from speculoos.errors import BadInput, Cancelled, SpeculoosError, Unavailable, Unexpected
from speculoos.private import set_private_umask
from workers.jobs.requests import custom_kinds

app = typer.Typer(
    name="speculoos",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Workbench for speculative decoding: train draft models, watch them draft, evaluate and export them.",
)
COMMANDS = (
    services.up,
    services.doctor,
    services.login_link,
    quickstart.quickstart,
    train.train,
    generate.generate,
    evaluate.evaluate,
    matrix.matrix,
    plan.plan,
    tune.tune,
    export.export,
    push.push,
    backup.verify,
    services.serve,
    services.worker,
    services.train_node,
    backup.backup,
    backup.restore,
    backup.cleanup,
)
GROUPS = {
    "models": models,
    "data": data,
    "endpoints": endpoints,
    "features": features,
    "jobs": jobs,
    "keys": keys,
    "replay": replay,
    "servers": servers,
}
for command in COMMANDS:
    app.command(cls=train.TrainCommand if command is train.train else None)(command)
for name, group in GROUPS.items():
    app.add_typer(group.app, name=name)


DISK_HINTS = {
    errno.EROFS: "Make it writable, or use another folder; SPECULOOS_HOME sets the home folder.",
    errno.ENOSPC: "Free some space on the disk of the home folder, or on that of the file to write.",
}
"""errno of a disk error → hint."""


def _show_version(value: bool) -> None:
    if value:
        print(f"speculoos {version('speculoos')}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command name."""


@cache
def add_custom_commands() -> None:
    """Commands of custom job kinds. Raises BadInput."""
    for kind in custom_kinds():
        app.command(kind.kind.replace("_", "-"))(kind_command(kind))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. Errors are printed as one sentence, without a traceback."""
    set_private_umask()
    arguments = list(sys.argv[1:] if argv is None else argv)
    as_json = "--json" in arguments
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: stops started processes in order
    try:
        add_custom_commands()
        return int(app(arguments, prog_name="speculoos", standalone_mode=False) or 0)
    except _click.exceptions.NoArgsIsHelpError as help_text:
        print(help_text.format_message())
        return 0
    except _click.exceptions.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f"See `{context.command_path} --help`." if context else ""
        return fail(BadInput(error.format_message().rstrip(".") + ".", hint), as_json)
    except SpeculoosError as error:
        return fail(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return fail(Cancelled("Stopped."), as_json)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        hint = DISK_HINTS.get(error.errno or 0, "")
        return fail(Unavailable(f"{where}{error.strerror or error}.", hint), as_json)
    except Exception as error:
        if os.environ.get("SPECULOOS_DEBUG"):
            traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        message = f"Unexpected error ({what}); please report it with the traceback that SPECULOOS_DEBUG=1 prints."
        return fail(Unexpected(message), as_json)


if __name__ == "__main__":
    sys.exit(main())
