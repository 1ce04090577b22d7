"""The machine's clock is stepped while real processes work; fenced processes are ended."""

import signal
from datetime import timedelta
from pathlib import Path

import pytest

from tests.tools.clock import Clock
from tests.tools.processes import freeze
from tests.workers.conftest import Bench, wait_until
from tests.workers.test_drills import gone, notes, steps, submit_count, wait_for_steps
from tracking import db, jobs, processes
from tracking.states import FINISHED
from tracking.tables import Job, Preference, now
from workers import identity

pytestmark = pytest.mark.integration


def wait_for_more_steps(bench: Bench, job: Job, count: int) -> Job:
    """Wait until the job has done `count` more steps or ended. The reconciler runs several times meanwhile."""
    done = bench.job(job.id).done
    return bench.wait_for(
        job.id, lambda j: j.done >= done + count or j.attempt > 1 or j.state in FINISHED, f"{count} steps more"
    )


def beat_ahead(bench: Bench) -> float:
    """Seconds by which the reconciler's last beat is ahead of this process's clock."""
    with db.reading(bench.settings) as session:
        return (processes.last_seen(session, "reconciler") - now()).total_seconds()


def test_a_job_goes_on_while_the_clock_is_stepped_to_and_fro(bench: Bench, tmp_path: Path) -> None:
    clock = Clock(bench, tmp_path)
    bench.worker()
    bench.reconciler()
    job = submit_count(bench, tmp_path / "w", steps=150)
    wait_for_steps(bench, job)
    for ahead in (1, 3600, -3600, 86_400 * 2):
        clock.step(ahead)
        assert wait_for_more_steps(bench, job, 15).attempt == 1, f"the clock {ahead} s ahead ended a live job"
        wait_until(lambda a=ahead: abs(beat_ahead(bench) - a) < 60, 60, "a beat by the changed clock", bench.output)
    done = bench.wait(job.id, "SUCCEEDED")
    assert done.attempt == 1
    assert steps(tmp_path / "w") == list(range(150))
    check_lost_jobs_after_the_clock_was_put_back(bench, clock, tmp_path)


def check_lost_jobs_after_the_clock_was_put_back(bench: Bench, clock: Clock, folder: Path) -> None:
    """Leases, messages and heartbeats of dead processes are now dated in the future."""
    clock.step(0)
    later = now() + timedelta(hours=1)
    lost, unsent = (
        submit_count(bench, folder / "lost", sent=False, steps=3),
        submit_count(bench, folder / "unsent", sent=False),
    )
    with db.writing(bench.settings) as session:
        row = session.get_one(Job, lost.id)
        row.state, row.attempt, row.owner, row.lease_until = "RUNNING", 1, "elsewhere/boot/1/2", later
        session.get_one(Job, unsent.id).published_at = later
        dead = {"name": "worker-gpu", "queue": "gpu", "concurrency": 7}
        session.add(Preference(key="process:worker-gpu@elsewhere:1", value=dead, updated_at=later))
    with db.reading(bench.settings) as session:
        assert "gpu" not in processes.capacities(session)
    assert bench.wait(unsent.id, "SUCCEEDED").attempt == 1
    assert bench.wait(lost.id, "SUCCEEDED").attempt == 2


def test_fenced_processes_are_ended_though_nobody_takes_over(bench: Bench, tmp_path: Path) -> None:
    """Worker and child are frozen, a grandchild has left the process group, and the row does not name the child: as if
    the supervisor had died between starting the child and recording it."""
    worker = bench.worker()
    job = submit_count(bench, tmp_path / "w", steps=2000, trick="detached")
    running = wait_for_steps(bench, job)
    detached = next(int(n[1]) for n in notes(tmp_path / "w") if n[0] == "grandchild")
    freeze(bench.settings.home, worker.pid, running.child["pid"])
    with db.writing(bench.settings) as session:
        session.get_one(Job, job.id).child = {}
    bench.reconciler()
    bench.wait(job.id, "INTERRUPTED")
    wait_until(lambda: not identity.is_alive(running.child), 60, "the fenced child's end", bench.output)
    wait_until(lambda: gone(detached), 60, "the end of what the child started", bench.output)
    worker.send_signal(signal.SIGCONT)
    with db.writing(bench.settings) as session:
        jobs.request_cancel(session, job.id)
