"""speculoos jobs: what is queued, what runs, what ended and why."""

from typing import Annotated

import typer

from cli.console import Json, Wait, figures, finish, listed, table

app = listed("Jobs: queued, running and ended.")
Reference = Annotated[str, typer.Argument(help="A job's id, the first characters of it, or its name.")]
HIDDEN = ("child", "owner", "lease_until", "version", "work")


@app.command("list")
def list_jobs(
    limit: Annotated[int, typer.Option(min=1, help="Most jobs to show.")] = 50,
    as_json: Json = False,
) -> None:
    """Newest first, with the place in the queue and what a job waits for."""
    from ops.homes import open_home
    from tracking import listing
    from tracking.db import reading

    with reading(open_home()) as session:
        rows, queues = listing.jobs(session, limit=limit), listing.Queues(session)
        entries = [_entry(job, queues) for job in rows]
    cells = [(j["id"][:8], j["state"], j["name"], j["user"], _progress(j), j["waits"] or j["error"]) for j in entries]
    finish(entries, as_json, table(cells, ("id", "state", "name", "user", "progress", "")))


@app.command()
def show(reference: Reference, as_json: Json = False) -> None:
    """One job: its request, its result, its newest figures."""
    result = _describe(reference)
    finish(result, as_json, figures({k: v for k, v in result.items() if v not in (None, "", {}, [])}))


@app.command()
def log(
    reference: Reference,
    lines: Annotated[int, typer.Option(min=1, help="Most lines to show.")] = 200,
    as_json: Json = False,
) -> None:
    """The job's log, newest lines last."""
    from ops.homes import open_home
    from tracking import jobs, reports
    from tracking.db import reading

    with reading(open_home()) as session:
        rows = reports.logs(session, jobs.find(session, reference).id, limit=lines)
        entries = [{"at": row.at, "attempt": row.attempt, "level": row.level, "message": row.message} for row in rows]
    finish(entries, as_json, "\n".join(f"{row['at']:%H:%M:%S} {row['level']:7} {row['message']}" for row in entries))


@app.command()
def cancel(reference: Reference, as_json: Json = False) -> None:
    """Ask a job to stop; what it finished is kept."""
    from workers.jobs.submit import request_cancel

    settings, found = _find(reference)
    job = request_cancel(found.id, settings)
    words = "cancelled" if job.state == "CANCELLED" else "asked to stop"
    finish(_describe(job.id), as_json, f"{job.name}: {words}.")


@app.command()
def retry(reference: Reference, wait: Wait = False, as_json: Json = False) -> None:
    """Queue a failed or cancelled job again; it goes on from its last checkpoint or shard."""
    from cli.follow import run_jobs
    from workers.jobs import submit

    settings, found = _find(reference)
    (job,) = run_jobs(settings, lambda: [submit.retry(found.id, settings)], found.queue, wait=wait)
    finish(_describe(job.id), as_json, f"{job.name}: {job.state.lower()}.")


@app.command()
def follow(reference: Reference, as_json: Json = False) -> None:
    """Follow a job to its end, starting a worker for it when none runs."""
    from cli.follow import run_jobs

    settings, found = _find(reference)
    (job,) = run_jobs(settings, lambda: [found], found.queue, wait=True)
    finish(_describe(job.id), as_json, f"{job.name}: {job.state.lower()}.")


@app.command("rm")
def remove(
    reference: Reference,
    force: Annotated[
        bool, typer.Option("--force", help="Delete it although things it made still refer to it.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Forget an ended job with its log and charts; what it made stays."""
    from cli.commands.removing import remove_row
    from tracking import jobs

    remove_row(lambda session: jobs.find(session, reference), force, as_json)


def _find(reference: str):  # noqa: ANN202
    from ops.homes import open_home
    from tracking import jobs
    from tracking.db import reading

    settings = open_home()
    with reading(settings) as session:
        return settings, jobs.find(session, reference)


def _describe(reference: str) -> dict:
    from ops.homes import open_home
    from tracking import jobs, listing, reports, shards
    from tracking.db import reading

    with reading(open_home()) as session:
        job = jobs.find(session, reference)
        return {
            **_entry(job, listing.Queues(session)),
            "shards_done": shards.tally(session, job.id).ended_well,
            "metrics": reports.last_metrics(session, job.id),
        }


def _entry(job, queues) -> dict:  # noqa: ANN001
    from ops.homes import columns

    return {**columns(job, *HIDDEN), "place": queues.place(job), "waits": queues.waits_for(job)}


def _progress(job: dict) -> str:
    if not job["unit"]:
        return ""
    return f"{job['done']}/{job['total']} {job['unit']}" if job["total"] else f"{job['done']} {job['unit']}"
