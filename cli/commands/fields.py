"""Command options generated from the fields of a job kind, with their help, default and bounds; `--estimate`."""

import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import typer

from cli.console import Json, Wait, figures, finish
from models.methods.settings import Setting
from ops.homes import open_home
from speculoos.settings import Settings
from workers.jobs.request import Request

EstimateOnly = Annotated[
    bool, typer.Option("--estimate", help="Only estimate time, disk and memory; nothing is started.")
]


def show_estimate(settings: Settings, request: Request, as_json: bool) -> None:
    """Check the request like `submit` and print its estimate. Raises the same errors as `submit`."""
    from workers.jobs.submit import check_and_estimate

    guess = check_and_estimate(settings, request)
    amounts = {"seconds": guess.seconds, "disk_bytes": guess.disk, "memory_bytes": guess.memory}
    amounts |= {"gpu_memory_bytes": guess.gpu_memory} if guess.gpu_bytes else {}
    result = {"kind": request.kind, "steps": guess.steps, "rests_on": guess.basis, "warnings": guess.warnings}
    result |= {name: None if amount is None else round(amount) for name, amount in amounts.items()}
    shown = {
        "time": f"about {timedelta(seconds=round(guess.seconds))}" if guess.seconds is not None else "unknown",
        "steps": f"{guess.steps:,} {guess.step_note}" if guess.steps else "",
        "disk": f"{guess.disk / 1e6:,.1f} MB",
        "GPU memory": f"{guess.gpu_memory / 1e9:,.1f} GB of {guess.gpu_bytes / 1e9:,.1f}" if guess.gpu_bytes else "",
        "memory": f"{guess.memory / 1e6:,.0f} MB",
        "based on": guess.basis,
    }
    text = figures({name: value for name, value in shown.items() if value})
    finish(result, as_json, "\n".join([text, *guess.warnings]))


def request_options(kind: type[Request], *names: str) -> Callable[[Any], Any]:
    """Decorator of a command: its `**options` become one option per field in `names` (default: all)."""
    settings = kind.options()
    selected = [settings[name] for name in names or settings]

    def decorate(command: Any) -> Any:
        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        end = next((i for i, p in enumerate(own) if p.name in ("estimate", "wait", "as_json")), len(own))
        parameters = [*own[:end], *map(_parameter, selected), *own[end:]]
        keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        command.__signature__ = signature.replace(parameters=keyword_only)
        return command

    return decorate


def _parameter(setting: Setting) -> inspect.Parameter:
    flag = f"--{setting.name.replace('_', '-')}"
    default: Any = setting.default
    if setting.kind is bool:
        option = typer.Option(f"{flag}/--no-{flag[2:]}" if default else flag, help=setting.help)
        annotation: Any = bool
    elif setting.kind in (int, float):
        option = typer.Option(flag, help=setting.help, min=setting.low, max=setting.high)
        annotation = setting.kind | None if setting.is_open else setting.kind
    else:  # text, also for lists: the request class parses it
        option = typer.Option(flag, help=setting.help)
        annotation = str
        default = ",".join(map(str, default)) if isinstance(default, list | tuple) else default or ""
    parameter = inspect.Parameter(
        setting.name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[annotation, option]
    )
    return parameter if setting.required else parameter.replace(default=default)


def kind_command(kind: type[Request]) -> Callable[..., None]:
    """A command for a job kind registered by the operator, with one option per field."""

    @request_options(kind)
    def command(
        name: Annotated[str, typer.Option(help="Name of the output.")] = "",
        estimate: EstimateOnly = False,
        wait: Wait = False,
        as_json: Json = False,
        **options: Any,
    ) -> None:
        from cli.follow import run_request

        settings, request = open_home(), kind(**options)
        if estimate:
            return show_estimate(settings, request, as_json)
        job = run_request(settings, request, name, wait)
        result = {"job": job.id, "job_state": job.state, **(job.result or {})}
        return finish(result, as_json, figures(result))

    command.__doc__ = kind.__doc__
    return command
