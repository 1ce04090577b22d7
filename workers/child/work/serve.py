"""Jobs `serve`, which run an inference server of another project, and `install_server`."""

import secrets
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from formats.engines import FILE_TYPES, INSTALLABLE, LaunchOptions, ServerEngine
from speculoos import running_servers
from speculoos.errors import Conflict, JobFailed
from speculoos.files import new_folder, new_private_file
from speculoos.gpus import visible_gpus
from speculoos.redaction import SINCE_START
from speculoos.reporting import check_stop
from speculoos.servers import variable_of
from speculoos.settings import secret_file
from tracking import queries
from tracking.evaluations import card_figures
from tracking.states import FINISHED
from tracking.tables import Base, Checkpoint, Job
from workers.child.context import JobContext
from workers.child.engine import EngineProcess, PortTaken, engine_version, python_command, reserved_port, server_folder
from workers.jobs.requests import InstallServer, Serve
from workers.jobs.serve import engine_command, extra_arguments, not_installed

MAX_RESTARTS = 3
STABLE_SECONDS = 600.0
"""A server that ran for longer starts to count its restarts anew."""
HEALTH_SECONDS, HANGING_CHECKS = 10.0, 6
HAS_PIP = find_spec("pip") is not None
TIMEOUT = 600.0
"""Timeout of requests to the endpoint, in seconds."""


@dataclass(frozen=True)
class Prepared:
    """What a server needs, except for its port."""

    name: str
    engine: ServerEngine
    version: str
    command: list[str]
    launch: LaunchOptions
    arguments: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


def run(request: Serve, context: JobContext) -> dict[str, Any]:
    """Run the server until the job is stopped or its time is over; after a crash it is started again."""
    with prepared(request, context) as server, private_key(context, server):
        started, restarts = time.monotonic(), 0
        while True:
            show(context, f"Starting {server.engine.title} {server.version}.")
            with started_engine(server, context) as process:
                ready = time.monotonic()
                reason = _watch(process, server, request, context, started)
            if not reason:
                return {"name": server.name, "seconds": round(time.monotonic() - started), "restarts": restarts}
            restarts = 1 if time.monotonic() - ready > STABLE_SECONDS else restarts + 1
            for line in process.last_lines():
                context.log(line, "warning")
            if restarts > MAX_RESTARTS:
                raise process.error(f"ended {restarts} times; the last time it {reason}", was_ready=True)
            note = f"{server.engine.title} {reason}; it is started again ({restarts} of {MAX_RESTARTS})."
            context.log(note, "warning")
            time.sleep(restarts * context.timing.poll_seconds)


def show(context: JobContext, note: str) -> None:
    """Show what the job does now."""
    context.progress(0, None, "", note)


@contextmanager
def prepared(request: Serve, context: JobContext, share: int = 1) -> Iterator[Prepared]:
    """Check the engine, write the model's files and take the devices; the files are deleted at the end. `share`:
    number of servers that use a GPU at once."""
    engine = request.server_engine
    python, command = engine_command(context.settings, engine)
    if not (python or command):
        raise not_installed(engine)
    version = engine_version(engine, python, command)
    base = context.input_with_files(Base, request.base_id)
    row = context.input_with_files(Checkpoint, request.checkpoint_id) if request.checkpoint_id else None
    with context.session() as session:
        name = request.name(session)
    if name in context.settings.current().endpoints:
        raise Conflict(f"There is an endpoint {name} already; choose another name.")
    folder = server_folder(context.settings.home, context.job_id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _remove_old_folders(context)
    try:
        draft, tokens, schedule = _write_draft(request, context, base, row, folder) if row else (None, 0, [])
        gpus = _take_gpus(request, context, [base.path, *([row.path] if row else [])])
        launch = LaunchOptions(
            base=_write_base(request, context, base, folder) if engine.base_file else Path(base.path),
            model=base.name,
            port=0,
            key=f"sk-speculoos-{secrets.token_hex(32)}",
            folder=folder,
            context=min(request.context, (base.card or {}).get("max_length") or request.context),
            draft=draft,
            method=row.method if row else "",
            tokens=tokens,
            schedule=schedule,
            precision=request.precision,
            gpus=len(gpus),
            share=share,
        )
        more = tuple(extra_arguments(context.settings, engine))
        yield Prepared(name, engine, version, python_command(engine, python, command), launch, more, gpus)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def started_engine(server: Prepared, context: JobContext) -> Iterator[EngineProcess]:
    """The server's process once it is ready; it ends with the block."""
    while True:
        with reserved_port(context.settings) as port:
            launch = replace(server.launch, port=port)
            process = EngineProcess(
                server.engine, server.version, launch, server.command, server.arguments, server.gpus
            )
            try:
                process.wait_ready(partial(check_stop, context))
                yield process
                return
            except PortTaken:
                continue  # another program was faster
            finally:
                process.end()


def _watch(process: EngineProcess, server: Prepared, request: Serve, context: JobContext, started: float) -> str:
    """Announce the endpoint until the time is over ("") or the server ended or hangs (the reason). Raises Cancelled."""
    values = {
        "endpoint": endpoint_fields(server, process),
        "job": context.job_id,
        "engine": server.engine.name,
        "version": server.version,
        "tokens": server.launch.tokens,
    }
    with running_servers.announce(context.settings.home, server.name, values):
        context.log(f"{server.engine.title} {server.version} serves {server.launch.model} at {process.root}/v1.")
        show(context, f"Ready: endpoint {server.name}, {process.root}/v1.")
        failures, next_check = 0, time.monotonic() + HEALTH_SECONDS
        while not (request.hours and time.monotonic() - started > request.hours * 3600):
            check_stop(context)
            if process.process.poll() is not None:
                return f"ended with status {process.process.returncode}"
            if time.monotonic() > next_check:
                failures = 0 if process.is_healthy() else failures + 1
                next_check = time.monotonic() + HEALTH_SECONDS
                if failures >= HANGING_CHECKS:
                    return "does not answer"
            time.sleep(context.timing.poll_seconds)
    return ""


def endpoint_fields(server: Prepared, process: EngineProcess) -> dict[str, Any]:
    """The fields of `Endpoint` for a running server, without its name."""
    key = variable_of("servers", server.name)
    return {"url": f"{process.root}/v1", "model": server.launch.model, "key_env": key, "timeout": TIMEOUT, "retries": 1}


@contextmanager
def private_key(context: JobContext, server: Prepared) -> Iterator[None]:
    """The server's key in a private file, from which its clients read it, and masked in this process' output."""
    path = secret_file(context.settings.home, variable_of("servers", server.name))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    SINCE_START.append(server.launch.key)
    with new_private_file(path) as handle:
        handle.write(f"{server.launch.key}\n".encode())
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _write_draft(
    request: Serve, context: JobContext, base_row: Base, row: Checkpoint, folder: Path
) -> tuple[Path, int, list[list[int]]]:
    """(the draft in the engine's format, validated; draft tokens per step; their schedule by batch size). Tokens and
    schedule are as measured on such a server, if its loads were."""
    from formats.checkpoint import CheckpointFiles
    from formats.export import build_export, check_export
    from formats.facts import CardFacts
    from formats.serve import served_tokens, tokens_by_load
    from models.base import load_base

    form = request.server_engine.format_of(row.method, request.precision)
    target = folder / "draft"
    with context.session() as session:
        facts = CardFacts.of(base_row, row.name, **card_figures(queries.evaluations(session, row.id)))
    check_export(row.path, base_row.path, form)
    if not target.exists():  # an earlier attempt may have written it
        show(context, "Exporting the draft.")
        base = load_base(base_row.path, "float32", "cpu", context.base_checksums(base_row), context.checksum_cache)
        build_export(row.path, base, form, target, context, facts)
    files, path = CheckpointFiles.read(row.path, base_row.path), next(iter(sorted(target.glob("*.gguf"))), target)
    tokens, loads = served_tokens(files, facts, request.server_engine.title)
    return (path, request.tokens, []) if request.tokens else (path, tokens, tokens_by_load(tokens, loads))


def _write_base(request: Serve, context: JobContext, base: Base, folder: Path) -> Path:
    from formats.gguf_files import write_base

    target = folder / "base.gguf"
    if not target.exists():
        show(context, "Writing the base model as GGUF.")
        write_base(base.path, target, FILE_TYPES[request.precision], context)
    return target


def _take_gpus(request: Serve, context: JobContext, paths: Sequence[str]) -> tuple[str, ...]:
    """UUIDs of the leased GPUs; () on a CPU, which servers share."""
    if context.settings.device == "cpu" or not visible_gpus():
        return ()
    from models.base import decoding_dtype, lease_name
    from workers.child.gpu_memory import model_memory, wait_for_memory
    from workers.child.work.measure import take_devices

    devices = take_devices(context, processes=request.gpus)
    dtype = decoding_dtype(context.settings.dtype, context.settings.device)
    wait_for_memory(context, devices, lambda: model_memory(paths, dtype, request.context, gpus=len(devices)))
    return tuple(lease_name(device) for device in devices)


def _remove_old_folders(context: JobContext) -> None:
    """Remove the files of servers whose jobs were killed and never ran again."""
    folders = [path for path in (context.settings.home / running_servers.FOLDER).iterdir() if path.is_dir()]
    with context.session() as session:
        jobs = {path: session.get(Job, path.name) for path in folders}
        ended = [path for path, job in jobs.items() if job is None or job.state in FINISHED]
    for path in ended:
        shutil.rmtree(path, ignore_errors=True)


def run_install(request: InstallServer, context: JobContext) -> dict[str, Any]:
    """Make the environment and install the packages with pip; the environment is complete or does not exist."""
    engine = INSTALLABLE[request.package]
    target = context.settings.engines_folder / request.package
    with new_folder(target, replace=True) as building:
        show(context, "Creating the virtual environment.")
        venv.create(building, with_pip=not HAS_PIP)  # installing pip would take seconds
        python = building / "bin" / "python"
        show(context, f"Installing {request.package}.")
        _pip(context, python, "install", *engine.wheels[request.package])
        if engine.removed:
            _pip(context, python, "uninstall", "--yes", *engine.removed)
    return {"package": request.package, "version": engine_version(engine, str(target / "bin" / "python"), ())}


def _pip(context: JobContext, python: Path, *arguments: str) -> None:
    """Run pip with its output in the job's log. Raises JobFailed with its last error, or Cancelled."""
    pip = [sys.executable, "-m", "pip", "--python", str(python)] if HAS_PIP else [str(python), "-m", "pip"]
    command = [*pip, "--disable-pip-version-check", "--no-input", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sys.stdout.write(line)
            last = line.strip() if line.startswith("ERROR") or not last else last
            if context.stop_requested():
                process.kill()
    check_stop(context)
    if process.returncode:
        hint = "Check the connection to the package index, and that this platform has the package."
        raise JobFailed("install_failed", f"pip {arguments[0]} failed: {last[:300].rstrip('.')}.", hint)
