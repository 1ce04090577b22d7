"""The machine's clock is stepped while real processes work; fenced processes are ended."""

import signal
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from tests.tools.clock import Clock
from tests.tools.processes import freeze
from tests.workers.conftest import Bench, wait_until
from tests.workers.holds import PROGRESS, hold
from tests.workers.test_drills import gone, notes, steps, submit_count, wait_for_steps
from tracking import db, jobs, processes
from tracking.tables import Job, Preference, now
from workers import identity

pytestmark = pytest.mark.integration


def wait_for_beat(bench: Bench, ahead: float) -> None:
    """Wait for a beat of the reconciler by a clock that is `ahead` seconds ahead of this process's."""

    def has_beaten() -> bool:
        with db.reading(bench.settings) as session:
            last = processes.last_seen(session, "reconciler")
        return last is not None and abs((last - now()).total_seconds() - ahead) < 60

    wait_until(has_beaten, 60, f"a beat {ahead} s ahead", bench.output)


def test_a_job_goes_on_while_the_clock_is_stepped_to_and_fro(bench: Bench, tmp_path: Path) -> None:
    clock = Clock(bench, tmp_path)
    bench.worker()
    bench.reconciler()
    wait_for_beat(bench, 0)
    with ExitStack() as holds:
        holds.enter_context(hold(bench.settings.home, PROGRESS, 3))
        job = submit_count(bench, tmp_path / "w", steps=80)
        wait_for_steps(bench, job)
        for count, ahead in ((18, 1), (33, 3600), (48, -3600), (63, 86_400 * 2)):
            clock.step(ahead)
            holds.enter_context(hold(bench.settings.home, PROGRESS, count))  # the reconciler runs several times
            going = bench.wait_for(
                job.id, lambda j, n=count: j.done >= n or j.attempt > 1 or j.state != "RUNNING", f"{count} steps"
            )
            assert (going.state, going.attempt) == ("RUNNING", 1), f"the clock {ahead} s ahead ended a live job"
        wait_for_beat(bench, ahead)
    done = bench.wait(job.id, "SUCCEEDED")
    assert done.attempt == 1
    assert steps(tmp_path / "w") == list(range(80))
    check_lost_jobs_after_the_clock_was_put_back(bench, clock, tmp_path)


def check_lost_jobs_after_the_clock_was_put_back(bench: Bench, clock: Clock, folder: Path) -> None:
    """Leases, messages and heartbeats of dead processes are now dated in the future."""
    clock.step(0)
    bench.environment["SPECULOOS_LEASE_SECONDS"] = "3"
    bench.reconciler()  # beside the other one, which gives a busy worker more time
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
    bench.environment["SPECULOOS_LEASE_SECONDS"] = "3"
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
