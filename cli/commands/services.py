"""speculoos up, doctor, serve, worker: the processes themselves."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.console import Json, finish, say
from speculoos.errors import BadInput
from speculoos.inference_token import read_inference_token
from speculoos.login_links import create_login_link
from speculoos.settings import load

QUEUES = ("gpu", "io")


def up() -> int:
    """Start everything and keep it running until Ctrl-C; prints the address of the pages."""
    from cli.launch.up import up as run

    return run(load())


def doctor(
    bundle: Annotated[
        Path | None, typer.Option("--bundle", help="Also write a zip for a bug report, without secrets and texts.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Check every part and say what to do about those that are not well."""
    from ops.health import check

    settings = load()
    parts = check(settings)
    healthy = all(part.ok for part in parts.values())
    width = max(map(len, parts))
    lines = [
        f"{'ok ' if p.ok else 'BAD'} {name.ljust(width)}  {p.detail} {p.hint}".rstrip() for name, p in parts.items()
    ]
    if bundle:
        from ops.bundle import write_bundle

        write_bundle(settings, bundle.expanduser().resolve(), parts)
        say(f"{bundle}: for a bug report; secrets and texts are left out, but look it through.")
    result = {"healthy": healthy, "parts": {name: part.to_json() for name, part in parts.items()}}
    finish(result, as_json, "\n".join([*lines, "Everything is well." if healthy else "Not everything is well."]))
    return 0 if healthy else 1


def login_link(as_json: Json = False) -> None:
    """Print a link that lets one browser into the pages, once, within a day."""

    settings = load()
    link = create_login_link(settings, settings.url) if settings.asks_login else settings.url
    finish({"url": link, "once": settings.asks_login}, as_json, link)
    if not settings.asks_login:
        say("These pages ask for no login; SPECULOOS_LOGIN=token makes them.")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback asks for the token too.")] = "",
    port: Annotated[int, typer.Option(help="Port; default SPECULOOS_INFERENCE_PORT or 7861.")] = 0,
) -> int:
    """The inference server alone: OpenAI's protocol, with the trace of speculation in every chunk."""
    from ops.homes import open_home

    settings = open_home()
    read_inference_token(settings)
    os.environ["SPECULOOS_HOME"] = str(settings.home)
    if host:
        os.environ["SPECULOOS_INFERENCE_HOST"] = host
    if port:
        os.environ["SPECULOOS_INFERENCE_PORT"] = str(port)
        os.environ["SPECULOOS_INFERENCE_URL"] = f"http://127.0.0.1:{port}"
    say(f"Token: in {settings.inference_token_file}")
    os.execv(sys.executable, [sys.executable, "-m", "serving.main"])


def worker(
    name: Annotated[str, typer.Argument(metavar="[QUEUE]", help="The same as --queue.")] = "",
    queue: Annotated[
        str, typer.Option(help="gpu (generates, trains, evaluates; default) or io (imports, downloads).")
    ] = "",
    count: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    device: Annotated[
        str, typer.Option(help="Device: cpu, cuda or cuda:N; several, comma-separated, are dealt out.")
    ] = "",
    threads: Annotated[int, typer.Option(help="Jobs at once of each; default 1 for gpu, 4 for io.")] = 0,
) -> int:
    """Workers alone, without pages: beside `speculoos up`, or on another machine that sees the same Redis and database.

    There REDIS_URL and DATABASE_URL name the servers that the pages use, and SPECULOOS_STORE the place for files,
    unless the home folder is shared.
    """
    from cli.launch.workers import check_worker_setup, run

    chosen = queue or name or QUEUES[0]
    if chosen not in QUEUES:
        raise BadInput(f"There is no queue {chosen!r}; the queues are {' and '.join(QUEUES)}.")
    settings = load()
    check_worker_setup(settings)
    os.environ["SPECULOOS_HOME"] = str(settings.home)
    return run(chosen, count, threads or None, [part.strip() for part in device.split(",") if part.strip()])
