"""Short drills with real processes: broker, worker, reconciler, child. Each kills or stops one of them on purpose.

Tests with `steady` share one worker and one reconciler, which survive them; tests with `bench` start their own.
Longer drills are in tests/drills.
"""

import os
import signal
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from speculoos.settings import Settings
from tests.tools.processes import freeze, gone
from tests.workers.conftest import SECRET, Bench, Broker, wait_until
from tests.workers.drill_work import Count
from tests.workers.holds import PROGRESS, hold
from tracking import db, jobs, reports
from tracking.tables import Job, now
from workers import identity
from workers.celery_app import publish
from workers.jobs.submit import request_cancel

pytestmark = pytest.mark.integration

FORKED = True


def submit_count(bench: Bench, folder: Path, after: Job | None = None, sent: bool = True, **fields: object) -> Job:
    """Commit a `count` job and send its message. With `sent` False the row says sent although no message exists."""
    request = Count(folder=str(folder), **fields).to_json()
    with db.writing(bench.settings) as session:
        after_id = after.id if after else None
        job = jobs.create(session, kind="count", queue="io", request=request, name="count", after_id=after_id)
        if not sent:
            jobs.mark_published(session, job.id)
    if sent and not after:
        publish(bench.settings, [job])
    return job


def notes(folder: Path) -> list[list[str]]:
    path = folder / "notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def steps(folder: Path) -> list[int]:
    return [int(n[1]) for n in notes(folder) if n[0] == "step"]


def no_two_at_once(folder: Path) -> None:
    """Check that each process did all its steps before the next one began."""
    pids = [n[2] for n in notes(folder) if n[0] == "step"]
    turns = [pid for i, pid in enumerate(pids) if i == 0 or pids[i - 1] != pid]
    assert len(turns) == len(set(turns)), f"two processes worked in turns: {turns}"


def wait_for_steps(bench: Bench, job: Job, count: int = 3) -> Job:
    return bench.wait_for(job.id, lambda j: j.done >= count and j.state == "RUNNING", f"{count} steps")


def test_a_job_runs_to_its_end(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", steps=10)
    done = steady.wait(job.id, "SUCCEEDED")
    assert (done.done, done.total, done.attempt, done.result) == (10, 10, 1, {"steps": 10})
    assert steps(tmp_path / "w") == list(range(10))
    with db.reading(steady.settings) as session:
        assert [s for s, _ in reports.metrics(session, job.id)["train/loss"]] == list(range(10))
        assert reports.samples(session, job.id)[0].record == {"text": "done\ufffd"}


def test_a_killed_child_is_followed_by_one_that_goes_on(steady: Bench, tmp_path: Path) -> None:
    with hold(steady.settings.home, PROGRESS, 3):
        job = submit_count(steady, tmp_path / "w", steps=10)
        running = wait_for_steps(steady, job)
        os.kill(running.child["pid"], signal.SIGKILL)
    done = steady.wait(job.id, "SUCCEEDED")
    assert done.attempt == 2
    assert sorted(set(steps(tmp_path / "w"))) == list(range(10))
    no_two_at_once(tmp_path / "w")


def test_a_job_that_lost_a_process_of_its_own_is_tried_again(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", steps=3, trick="lost")
    done = steady.wait(job.id, "SUCCEEDED")
    assert done.attempt == 2 and steps(tmp_path / "w") == list(range(3))
    with db.reading(steady.settings) as session:
        (line,) = [line for line in reports.logs(session, job.id) if "was killed" in line.message]
    assert line.attempt == 1


def test_a_killed_worker_takes_its_child_along_and_the_next_one_goes_on(bench: Bench, tmp_path: Path) -> None:
    bench.reconciler()
    worker = bench.worker()
    with hold(bench.settings.home, PROGRESS, 3):
        job = submit_count(bench, tmp_path / "w", steps=10)
        running = wait_for_steps(bench, job)
        worker.kill()
        wait_until(lambda: not psutil.pid_exists(running.child["pid"]), 60, "the orphaned child's end")
    bench.worker()
    done = bench.wait(job.id, "SUCCEEDED")
    assert done.attempt == 2
    assert sorted(set(steps(tmp_path / "w"))) == list(range(10))
    no_two_at_once(tmp_path / "w")


def test_a_worker_told_to_stop_interrupts_its_job_quickly_and_the_next_one_goes_on(
    bench: Bench, tmp_path: Path
) -> None:
    worker = bench.worker()
    with hold(bench.settings.home, PROGRESS, 3):
        job = submit_count(bench, tmp_path / "w", steps=10)
        wait_for_steps(bench, job)
        worker.terminate()
        assert worker.wait(30) == 0
    stopped = bench.job(job.id)
    assert (stopped.state, stopped.progress_note) == ("INTERRUPTED", "The worker was stopped.")
    assert stopped.attempt_cap > jobs.ATTEMPTS, "stopping costs no attempt"
    assert not identity.is_alive(stopped.child)
    bench.worker()
    assert bench.wait(job.id, "SUCCEEDED").attempt == 2
    assert steps(tmp_path / "w") == list(range(10)), "nothing twice, since the child saved its place"
    no_two_at_once(tmp_path / "w")


def test_a_worker_that_slept_through_its_lease_comes_back_fenced(bench: Bench, tmp_path: Path) -> None:
    """The worst case: worker and child are frozen, another worker takes over, then both wake up."""
    bench.environment["SPECULOOS_LEASE_SECONDS"] = "3"
    first_worker = bench.worker()
    with hold(bench.settings.home, PROGRESS, 3):
        job = submit_count(bench, tmp_path / "w", steps=60)
        running = wait_for_steps(bench, job)
        freeze(bench.settings.home, first_worker.pid, running.child["pid"])
        bench.worker()
        reconciler = bench.reconciler()
        second_attempt = bench.wait_for(job.id, lambda j: j.attempt == 2 and j.child != running.child, "attempt 2")
        reconciler.kill()  # it would also take the job from the second worker if that one were slow
        assert not identity.is_alive(running.child), "the frozen child was ended before the new one began"
        first_worker.send_signal(signal.SIGCONT)
    done = bench.wait(job.id, "SUCCEEDED")
    assert done.attempt == second_attempt.attempt == 2 and done.owner != running.owner
    assert sorted(set(steps(tmp_path / "w"))) == list(range(60))
    no_two_at_once(tmp_path / "w")


def test_a_child_whose_job_was_taken_elsewhere_leaves_without_writing(steady: Bench, tmp_path: Path) -> None:
    """Its process cannot be found, as if it ran on another machine, so only the fence ends it."""
    job = submit_count(steady, tmp_path / "w", steps=2000)
    running = wait_for_steps(steady, job)
    with db.writing(steady.settings) as session:
        row = session.get_one(Job, job.id)
        row.attempt, row.owner, row.lease_until = 2, "elsewhere", now() + timedelta(hours=1)
    wait_until(lambda: not identity.is_alive(running.child), 60, "the fenced child's end")
    before = steady.job(job.id)
    steady.wait(submit_count(steady, tmp_path / "next", steps=1).id, "SUCCEEDED")
    after = steady.job(job.id)
    assert (after.state, after.attempt, after.owner, after.done) == ("RUNNING", 2, "elsewhere", before.done)


def test_a_running_job_stops_at_its_next_safe_point(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", steps=2000)
    wait_for_steps(steady, job)
    request_cancel(job.id, steady.settings)
    done = steady.wait(job.id, "CANCELLED")
    assert done.error_code == "cancelled" and "finished work is kept" in done.error
    wait_until(lambda: not identity.is_alive(done.child), 60, "the child's end")


def test_a_job_that_does_not_listen_is_ended_by_force(bench: Bench, tmp_path: Path) -> None:
    bench.environment["SPECULOOS_GRACE_SECONDS"] = "1"
    bench.worker()
    job = submit_count(bench, tmp_path / "w", steps=2000, trick="deaf")
    wait_for_steps(bench, job)
    request_cancel(job.id, bench.settings)
    assert bench.wait(job.id, "CANCELLED").error == "Stopped at your request."


def test_a_waiting_job_is_cancelled_at_once_and_its_message_does_nothing(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", sent=False)
    assert request_cancel(job.id, steady.settings).state == "CANCELLED"
    publish(steady.settings, [job])
    other = submit_count(steady, tmp_path / "other", steps=1)
    steady.wait(other.id, "SUCCEEDED")
    assert steady.job(job.id).attempt == 0 and not notes(tmp_path / "w")


@pytest.mark.parametrize(
    ("trick", "code", "message"),
    [
        ("bad_input", "bad_input", "prompts.jsonl, line 7: no prompt here."),
        ("bug", "unexpected", "An unexpected KeyError stopped the work: 'surprise'"),
        ("exit", "crashed", "exit status 3; its last line was: the library says: no such kernel"),
    ],
)
def test_a_failed_job_says_why_in_one_sentence(
    steady: Bench, tmp_path: Path, trick: str, code: str, message: str
) -> None:
    job = submit_count(steady, tmp_path / "w", trick=trick)
    failed = steady.wait(job.id, "FAILED")
    assert failed.error_code == code and message in failed.error and failed.hint
    assert "Traceback" not in failed.error and "\n" not in failed.error
    log = (steady.settings.home / "logs" / f"{job.id}.log").read_text()
    assert ("Traceback" in log) == (trick == "bug"), "only what nobody foresaw has a traceback, and only in the log"


def test_a_job_that_crashes_every_time_is_given_up(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", trick="segfault")
    failed = steady.wait(job.id, "FAILED")
    assert failed.attempt == jobs.ATTEMPTS
    assert "Failed after 5 consecutive attempts" in failed.error and "SIGSEGV" in failed.error


def test_what_a_job_started_ends_with_it(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", steps=2000, trick="grandchild")
    wait_for_steps(steady, job)
    grandchild = next(int(n[1]) for n in notes(tmp_path / "w") if n[0] == "grandchild")
    assert psutil.pid_exists(grandchild)
    request_cancel(job.id, steady.settings)
    steady.wait(job.id, "CANCELLED")
    wait_until(lambda: gone(grandchild), 60, "the grandchild's end")


def test_no_secret_reaches_rows_or_logs(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", trick="secret")
    failed = steady.wait(job.id, "FAILED")
    assert "401 for token •••" in failed.error
    with db.reading(steady.settings) as session:
        assert [line.message for line in reports.logs(session, job.id)][0] == "token ••• was used"
    found = [p for p in steady.settings.home.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert not found, found


def test_a_job_submitted_while_the_broker_is_away_starts_once_it_is_back(steady: Bench, tmp_path: Path) -> None:
    without_broker = replace(steady.settings, redis_url=f"redis+socket://{tmp_path}/nobody.sock")
    job = submit_count(steady, tmp_path / "w", sent=False, steps=3)
    assert publish(without_broker, [job]) == 0
    steady.wait(job.id, "SUCCEEDED")


def test_messages_lost_by_the_broker_are_sent_again(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", sent=False, steps=3)
    assert steady.job(job.id).published_at is not None
    steady.wait(job.id, "SUCCEEDED")
    assert steps(tmp_path / "w") == [0, 1, 2]


def test_the_same_message_ten_times_runs_a_job_once(steady: Bench, tmp_path: Path) -> None:
    job = submit_count(steady, tmp_path / "w", steps=10)
    publish(steady.settings, [job] * 9)
    steady.wait(job.id, "SUCCEEDED")
    publish(steady.settings, [job])
    last = submit_count(steady, tmp_path / "last", steps=1)
    steady.wait(last.id, "SUCCEEDED")
    assert steps(tmp_path / "w") == list(range(10))
    assert steady.job(job.id).attempt == 1


def test_a_job_after_another_starts_when_that_one_is_done(steady: Bench, tmp_path: Path) -> None:
    first = submit_count(steady, tmp_path / "first", steps=5)
    second = submit_count(steady, tmp_path / "second", after=first, steps=2)
    steady.wait(second.id, "SUCCEEDED")
    assert steady.job(first.id).finished_at <= steady.job(second.id).started_at


def test_a_broker_that_is_killed_and_comes_back_stops_neither_running_nor_later_jobs(
    home: Settings, tmp_path: Path
) -> None:
    broker = Broker()
    bench = Bench(replace(home, redis_url=broker.url), forked=True)
    try:
        worker = bench.worker()
        bench.reconciler()
        with hold(bench.settings.home, PROGRESS, 3):
            job = submit_count(bench, tmp_path / "w", steps=10)
            wait_for_steps(bench, job)
            broker.kill()
            waiting = submit_count(bench, tmp_path / "later", steps=3)
            time.sleep(1)
            broker.start()
        assert bench.wait(waiting.id, "SUCCEEDED").attempt == 1
        assert bench.wait(job.id, "SUCCEEDED").attempt == 1, "the running job noticed nothing"
        assert worker.poll() is None
    finally:
        bench.end()
        broker.end()
