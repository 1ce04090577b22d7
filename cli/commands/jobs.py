"""`speculoos jobs`: lists, follows, cancels and retries jobs."""

from typing import Annotated

import typer

from cli.commands.targets import remove_row
from cli.console import Json, Wait, figures, finish, listed, table
from ops.homes import columns, open_home
from tracking import jobs, listing, reports, shards
from tracking.db import reading
from tracking.states import JobState

app = listed("Queued, running and ended jobs.")
Reference = Annotated[str, typer.Argument(help="Id of a job (or its first characters), or its name.")]
HIDDEN = ("child", "owner", "lease_until", "version", "work")


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, help="Max jobs.")] = 50,
    as_json: Json = False,
) -> None:
    """List jobs, newest first, with the queue position and what a job waits for."""
    with reading(open_home()) as session:
        rows, queues = listing.jobs(session, limit=limit), listing.Queues(session)
        entries = [_entry(job, queues) for job in rows]
    cells = [(j["id"][:8], j["state"], j["name"], j["user"], _progress(j), j["waits"] or j["error"]) for j in entries]
    finish(entries, as_json, table(cells, ("id", "state", "name", "user", "progress", "")))


@app.command()
def show(reference: Reference, as_json: Json = False) -> None:
    """Show a job: its request, result and latest metrics."""
    result = _describe(reference)
    finish(result, as_json, figures({k: v for k, v in result.items() if v not in (None, "", {}, [])}))


@app.command()
def log(
    reference: Reference,
    lines: Annotated[int, typer.Option(min=1, help="Max lines.")] = 200,
    as_json: Json = False,
) -> None:
    """Print the log of a job, newest lines last."""
    with reading(open_home()) as session:
        rows = reports.logs(session, jobs.find(session, reference).id, limit=lines)
        entries = [{"at": row.at, "attempt": row.attempt, "level": row.level, "message": row.message} for row in rows]
    finish(entries, as_json, "\n".join(f"{row['at']:%H:%M:%S} {row['level']:7} {row['message']}" for row in entries))


@app.command()
def cancel(reference: Reference, as_json: Json = False) -> None:
    """Cancel a job; its finished output is kept."""
    from workers.jobs.submit import request_cancel

    settings, row = _find(reference)
    job = request_cancel(row.id, settings)
    state = "cancelled" if job.state == "CANCELLED" else "stopping"
    finish(_describe(job.id), as_json, f"{job.name}: {state}.")


@app.command()
def retry(reference: Reference, wait: Wait = False, as_json: Json = False) -> None:
    """Queue a failed or cancelled job again; it resumes from its last checkpoint or shard."""
    from cli.follow import run_jobs
    from workers.jobs import submit

    settings, row = _find(reference)
    (job,) = run_jobs(settings, lambda: [submit.retry(row.id, settings)], row.queue, wait=wait)
    finish(_describe(job.id), as_json, f"{job.name}: {job.state.lower()}.")


@app.command()
def follow(reference: Reference, as_json: Json = False) -> None:
    """Follow a job to its end; starts a worker for it if none is running."""
    from cli.follow import run_jobs

    settings, row = _find(reference)
    (job,) = run_jobs(settings, lambda: [row], row.queue, wait=True)
    finish(_describe(job.id), as_json, f"{job.name}: {job.state.lower()}.")


@app.command("rm")
def remove(
    reference: Reference,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if its output still refers to it.")] = False,
    as_json: Json = False,
) -> None:
    """Delete an ended job with its log and charts; its output is kept."""
    remove_row(lambda session: jobs.find(session, reference), force, as_json)


def _find(reference: str):
    settings = open_home()
    with reading(settings) as session:
        return settings, jobs.find(session, reference)


def _describe(reference: str) -> dict:
    with reading(open_home()) as session:
        job = jobs.find(session, reference)
        return {
            **_entry(job, listing.Queues(session)),
            "shards_done": shards.tally(session, job.id).count(JobState.SUCCEEDED),
            "metrics": reports.last_metrics(session, job.id),
        }


def _entry(job, queues) -> dict:
    return {**columns(job, *HIDDEN), "position": queues.position(job), "waits": queues.waits_for(job)}


def _progress(job: dict) -> str:
    if not job["unit"]:
        return ""
    return f"{job['done']}/{job['total']} {job['unit']}" if job["total"] else f"{job['done']} {job['unit']}"
