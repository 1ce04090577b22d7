"""`speculoos up`, `doctor`, `login-link`, `serve`, `worker` and `train-node`."""

import os
import sys
from typing import Annotated

import typer

from cli.console import Json, finish, say
from ops.homes import open_home
from speculoos.errors import BadInput
from speculoos.files import read_inference_token
from speculoos.login_links import create_login_link
from speculoos.settings import load
from tracking.workload import QUEUES


def up() -> int:
    """Start all services and run them until Ctrl-C; prints the URL of the pages."""
    from cli.launch.up import up as run

    return run(load())


def doctor(as_json: Json = False) -> int:
    """Check every part of the installation; prints a hint for each that fails."""
    from ops.health import check

    parts = check(load())
    healthy = all(part.ok for part in parts.values())
    width = max(map(len, parts))
    lines = [
        f"{'ok ' if p.ok else 'BAD'} {name.ljust(width)}  {p.detail} {p.hint}".rstrip() for name, p in parts.items()
    ]
    result = {"healthy": healthy, "parts": {name: part.to_json() for name, part in parts.items()}}
    finish(result, as_json, "\n".join([*lines, "All checks passed." if healthy else "Some checks failed."]))
    return 0 if healthy else 1


def login_link(as_json: Json = False) -> None:
    """Print a link that logs one browser in; it works once, within a day."""
    settings = load()
    link = create_login_link(settings, settings.url) if settings.requires_login else settings.url
    finish({"url": link, "once": settings.requires_login}, as_json, link)
    if not settings.requires_login:
        say("These pages require no login; set SPECULOOS_LOGIN=token to require one.")


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on; other than loopback requires the token.")] = "",
    port: Annotated[int, typer.Option(help="Port; default SPECULOOS_INFERENCE_PORT or 7861.")] = 0,
) -> int:
    """Run only the inference server: an OpenAI-compatible API with a trace of speculation in every chunk."""
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
    queue: Annotated[
        str, typer.Option(help="gpu (generation, training, evaluation) or io (imports, downloads).")
    ] = "gpu",
    count: Annotated[
        int, typer.Option(min=0, help="Worker processes; default one for each GPU for gpu, 1 for io.")
    ] = 0,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N; several, comma-separated, are distributed over the workers.")
    ] = "",
    threads: Annotated[int, typer.Option(help="Concurrent jobs per worker; default 1 for gpu, 4 for io.")] = 0,
) -> int:
    """Run only workers: in addition to `speculoos up`, or on another machine with the same Redis and database.

    On another machine REDIS_URL and DATABASE_URL must be those of the pages, and SPECULOOS_STORE the store for files,
    unless the home folder is shared.
    """
    from cli.launch.programs import gpu_workers
    from cli.launch.workers import check_worker_setup, run

    if queue not in QUEUES:
        raise BadInput(f"There is no queue {queue!r}; the queues are {' and '.join(QUEUES)}.")
    settings = load()
    check_worker_setup(settings)
    os.environ["SPECULOOS_HOME"] = str(settings.home)
    devices = [part.strip() for part in device.split(",") if part.strip()]
    if queue == "gpu" and not count:
        count = len(devices) or gpu_workers(settings)
    return run(queue, count or 1, threads or None, devices)


def train_node(
    endpoint: Annotated[str, typer.Argument(metavar="HOST:PORT", help="--rdzv-endpoint of the training.")],
) -> None:
    """Run this machine's share of trainings on several machines (`train --nodes`), until stopped.

    The first machine has a worker, all others this command. All need the same home folder at the same path and the same
    database. The port accepts anyone who can reach it: use it within a private network.
    """
    if not endpoint.rpartition(":")[2].isdecimal():
        raise BadInput(f"Expected host:port, got {endpoint!r}.")
    os.environ["SPECULOOS_HOME"] = str(load().home)
    os.execv(sys.executable, [sys.executable, "-m", "workers.child.node", endpoint])
