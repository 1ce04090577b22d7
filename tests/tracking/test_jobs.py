"""The life cycle of a job: who may claim, renew, end, cancel and retry it; what happens to jobs that wait for it."""

import contextlib
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta

import pytest

from speculoos.errors import Conflict, Fenced, NotFound, SpeculoosError
from speculoos.settings import Settings
from tracking import db, jobs, reports
from tracking.states import TRANSITIONS, JobState
from tracking.tables import Dataset, Job, now

Make = Callable[..., Job]
Read = Callable[[Job], Job]
S = JobState


def claim(database: Settings, job: Job, owner: str = "me") -> int | None:
    with db.writing(database) as session:
        return jobs.claim(session, job.id, owner, 30)


def do(database: Settings, change: Callable[..., object], *arguments: object, **named: object) -> object:
    with db.writing(database) as session:
        return change(session, *arguments, **named)


def test_a_claimed_job_runs_as_its_first_attempt(database: Settings, make_job: Make, read: Read) -> None:
    job = make_job()
    assert claim(database, job) == 1
    stored = read(job)
    assert (stored.state, stored.attempt, stored.owner) == (S.RUNNING, 1, "me")
    assert stored.lease_until > now() + timedelta(seconds=20)
    assert stored.started_at is not None


def test_a_second_message_for_a_claimed_job_is_harmless(database: Settings, make_job: Make, read: Read) -> None:
    job = make_job()
    claim(database, job)
    assert claim(database, job, "other") is None
    assert read(job).owner == "me"


@pytest.mark.parametrize("state", [S.SUCCEEDED, S.FAILED, S.CANCELLED])
def test_a_finished_job_cannot_be_claimed(database: Settings, make_job: Make, state: JobState) -> None:
    assert claim(database, make_job(state=state)) is None


@pytest.mark.parametrize("ahead", [-3600, 9], ids=["a date that has passed", "a date to come"])
def test_an_interrupted_job_can_be_claimed_and_a_running_one_cannot_whatever_its_lease_says(
    database: Settings, make_job: Make, ahead: int
) -> None:
    until = now() + timedelta(seconds=ahead)
    assert claim(database, make_job(state=S.INTERRUPTED, attempt=1)) == 2
    assert claim(database, make_job(state=S.RUNNING, attempt=2, lease_until=until)) is None


def test_a_clock_that_was_put_back_lets_no_job_jump_the_queue(database: Settings, make_job: Make) -> None:
    first = make_job("first", queued_at=now() + timedelta(hours=1))
    second, third, other = make_job("second"), make_job("third"), make_job("other", queue="io")
    assert first.queued_at < second.queued_at < third.queued_at
    assert other.queued_at < first.queued_at


def test_no_attempt_starts_beyond_the_cap_or_after_a_cancellation_request(database: Settings, make_job: Make) -> None:
    assert claim(database, make_job(state=S.INTERRUPTED, attempt=5)) is None
    assert claim(database, make_job(cancel_requested=True)) is None


def test_a_job_waits_until_the_one_before_it_succeeded(database: Settings, make_job: Make) -> None:
    first = make_job("first")
    second = make_job("second", after=first)
    assert claim(database, second) is None
    attempt = claim(database, first)
    do(database, jobs.succeed, first.id, attempt, {"n": 1})
    with db.reading(database) as session:
        assert [j.id for j in jobs.publishable(session)] == [second.id]
    assert claim(database, second) == 1


CLAIMER = """
import sys, time
from speculoos.settings import load
from tracking import db, jobs
settings = load()
with db.reading(settings) as session:
    session.connection()
print("ready", flush=True)
start = float(sys.stdin.readline())
time.sleep(max(0.0, start - time.time() - 0.05))
while time.time() < start:
    pass
for job_id in sys.argv[2:]:
    with db.writing(settings) as session:
        if jobs.claim(session, job_id, sys.argv[1], 30):
            print(job_id)
"""


@pytest.mark.integration
def test_exactly_one_of_many_processes_claims_a_job(database: Settings, make_job: Make, read: Read) -> None:
    many = [make_job(f"work {i}") for i in range(20)]
    command, pipes = [sys.executable, "-c", CLAIMER], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    processes = [
        subprocess.Popen([*command, f"owner {i}", *(j.id for j in many)], text=True, env=os.environ, **pipes)
        for i in range(2)
    ]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 2
    start = time.time() + 0.2
    for process in processes:
        process.stdin.write(f"{start}\n")
        process.stdin.flush()
    claimed = [process.communicate(timeout=120)[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert sorted(sum(claimed, [])) == sorted(job.id for job in many)
    for number, ids in enumerate(claimed):
        assert all(read(j).owner == f"owner {number}" for j in many if j.id in ids)


FENCED_WRITES = [
    lambda s, j: jobs.renew(s, j, 1, 30),
    lambda s, j: jobs.record_child(s, j, 1, {"pid": 1}),
    lambda s, j: jobs.succeed(s, j, 1, {}),
    lambda s, j: jobs.fail(s, j, 1, "code", "sentence"),
    lambda s, j: jobs.finish_cancelled(s, j, 1),
    lambda s, j: jobs.interrupt(s, j, 1, "reason"),
    lambda s, j: reports.write(s, j, 1, reports.JobReport({"done": 99}, {("loss", 1): 1.0}, [(now(), "info", "x")])),
]


@pytest.mark.parametrize("write", FENCED_WRITES, ids=range(len(FENCED_WRITES)))
def test_an_old_attempt_that_wakes_up_writes_nothing(
    database: Settings, make_job: Make, read: Read, write: Callable[..., object]
) -> None:
    job = make_job(state=S.INTERRUPTED, attempt=1)
    assert claim(database, job) == 2
    before = read(job)
    with pytest.raises(Fenced):
        do(database, write, job.id)
    after = read(job)
    assert {c.key: getattr(after, c.key) for c in Job.__table__.c} == {
        c.key: getattr(before, c.key) for c in Job.__table__.c
    }
    with db.reading(database) as session:
        assert reports.metrics(session, job.id) == {}
        assert reports.logs(session, job.id) == []


ENDINGS: dict[JobState, Callable[..., object]] = {
    S.SUCCEEDED: lambda s, j: jobs.succeed(s, j.id, j.attempt, {}),
    S.FAILED: lambda s, j: jobs.fail(s, j.id, j.attempt, "code", "sentence"),
    S.CANCELLED: lambda s, j: jobs.request_cancel(s, j.id),
    S.INTERRUPTED: lambda s, j: jobs.interrupt(s, j.id, j.attempt, "reason"),
    S.RUNNING: lambda s, j: jobs.claim(s, j.id, "me", 30),
    S.QUEUED: lambda s, j: jobs.retry(s, j.id),
}


def test_only_the_transitions_of_the_table_happen(database: Settings, make_job: Make, read: Read) -> None:
    """Every state with every operation: the state changes exactly when TRANSITIONS allows it."""
    for before, after in itertools.product(JobState, JobState):
        check_transition(database, make_job, read, before, after)


def check_transition(database: Settings, make_job: Make, read: Read, before: JobState, after: JobState) -> None:
    job = make_job(state=before, attempt=1, lease_until=now() - timedelta(seconds=1))
    with contextlib.suppress(SpeculoosError):
        do(database, ENDINGS[after], job)
    stored = read(job).state
    if before == S.RUNNING and after == S.CANCELLED:
        assert (stored, read(job).cancel_requested) == (S.RUNNING, True)  # requested; the worker ends it
        do(database, jobs.finish_cancelled, job.id, 1)
        stored = read(job).state
    possible = {S.FAILED} if before == S.INTERRUPTED else set()  # only by the cap, tested below
    expected = after if after in TRANSITIONS[before] - possible else before
    assert stored == expected, f"{before} by the verb of {after}"


def test_transitions_between_states() -> None:
    assert S.FAILED.can_become(S.QUEUED)
    assert not S.SUCCEEDED.can_become(S.RUNNING)


def test_a_crash_loop_ends_failed_with_a_sentence(database: Settings, make_job: Make, read: Read) -> None:
    job = make_job()
    for attempt in range(1, 5):
        assert claim(database, job) == attempt
        assert do(database, jobs.interrupt, job.id, attempt, "it crashed.") == S.INTERRUPTED
    assert claim(database, job) == 5
    assert do(database, jobs.interrupt, job.id, 5, "it crashed.") == S.FAILED
    stored = read(job)
    assert (
        stored.error.startswith("Failed after 5 consecutive attempts")
        and stored.error_code == "crashed"
        and stored.hint
    )
    do(database, jobs.retry, job.id)
    assert claim(database, job) == 6, "a retry brings five more attempts"


def test_attempts_that_get_further_are_not_counted(database: Settings, make_job: Make) -> None:
    """A job of many days finishes on a machine that is restarted often."""
    job = make_job()
    for attempt in range(1, 20):
        assert claim(database, job) == attempt
        do(database, reports.write, job.id, attempt, reports.JobReport({"done": attempt}))
        assert do(database, jobs.interrupt, job.id, attempt, "The machine restarted.") == S.INTERRUPTED
    for attempt in range(20, 25):
        assert claim(database, job) == attempt
        do(database, reports.write, job.id, attempt, reports.JobReport({"done": attempt - 13}))  # resumed, no further
        ended = do(database, jobs.interrupt, job.id, attempt, "It crashed.")
    assert ended == S.FAILED, "five attempts that did not get beyond what an earlier one had reached"


def test_a_worker_that_is_stopped_gives_the_attempt_back(database: Settings, make_job: Make) -> None:
    job = make_job()
    for attempt in range(1, 9):
        assert claim(database, job) == attempt
        do(database, jobs.interrupt, job.id, attempt, "The worker was stopped.", uses_attempt=False)


def test_cancelling_ends_a_waiting_job_at_once_and_is_requested_of_a_running_one(
    database: Settings, make_job: Make, read: Read
) -> None:
    waiting, running = make_job(), make_job()
    claim(database, running)
    do(database, jobs.request_cancel, waiting.id)
    do(database, jobs.request_cancel, running.id)
    assert read(waiting).state == S.CANCELLED and read(waiting).finished_at
    assert (read(running).state, read(running).cancel_requested) == (S.RUNNING, True)
    assert do(database, jobs.renew, running.id, 1, 30) is True, "the supervisor hears of it"
    assert do(database, jobs.interrupt, running.id, 1, "crash") == S.CANCELLED, "and no crash brings it back"
    with pytest.raises(Conflict, match="ended already"):
        do(database, jobs.request_cancel, waiting.id)


def test_waiting_jobs_are_cancelled_and_retried_with_the_job_they_wait_for(
    database: Settings, make_job: Make, read: Read
) -> None:
    first = make_job("first")
    second = make_job("second", after=first)
    third = make_job("third", after=second)
    other = make_job("other", after=first)
    do(database, jobs.request_cancel, other.id)
    attempt = claim(database, first)
    do(database, jobs.fail, first.id, attempt, "code", "broken")
    assert [read(j).state for j in (second, third)] == [S.CANCELLED, S.CANCELLED]
    assert "“first” failed" in read(second).error and "“second” was cancelled" in read(third).error
    with pytest.raises(Conflict, match="retry that one"):
        do(database, jobs.retry, second.id)
    do(database, jobs.retry, first.id)
    assert [read(j).state for j in (first, second, third)] == [S.QUEUED] * 3
    assert read(other).state == S.CANCELLED, "what the user cancelled stays cancelled"
    assert read(second).error == ""


def test_nothing_starts_after_a_job_that_failed(database: Settings, make_job: Make) -> None:
    first = make_job("first", state=S.FAILED)
    with pytest.raises(Conflict, match="retry it first"):
        make_job("second", after=first)


def test_a_follower_stranded_by_a_race_is_cancelled_later(database: Settings, make_job: Make, read: Read) -> None:
    first = make_job("first")
    second = make_job("second", after=first)
    with db.writing(database) as session:
        session.get_one(Job, first.id).state = S.FAILED  # as if it failed while the second was being made
    assert do(database, jobs.cancel_stranded) == 1
    assert read(second).state == S.CANCELLED and "“first” failed" in read(second).error


def test_outputs_follow_their_job(database: Settings, make_job: Make) -> None:
    job = make_job()
    with db.writing(database) as session:
        session.add(Dataset(name="half", kind="prompts", job_id=job.id))
        session.add(Dataset(name="whole", kind="prompts", job_id=job.id, state="ready"))
        session.add(Dataset(name="with rows", kind="conversations", job_id=job.id, rows=7))  # version 0.1.0 extended it

    def states() -> list[str]:
        with db.reading(database) as session:
            return [row.state for row in session.query(Dataset).order_by(Dataset.name)]

    claim(database, job)
    do(database, jobs.fail, job.id, 1, "code", "broken")
    assert states() == ["failed", "ready", "ready"]
    do(database, jobs.retry, job.id)
    assert states() == ["pending", "ready", "ready"]


def test_every_visible_change_raises_the_version(database: Settings, make_job: Make, read: Read) -> None:
    job = make_job()
    versions = [read(job).version]
    claim(database, job)
    versions.append(read(job).version)
    do(database, reports.write, job.id, 1, reports.JobReport(progress={"done": 1}))
    versions.append(read(job).version)
    do(database, jobs.request_cancel, job.id)
    versions.append(read(job).version)
    do(database, jobs.finish_cancelled, job.id, 1)
    versions.append(read(job).version)
    assert versions == sorted(set(versions))
    do(database, jobs.mark_published, job.id)
    assert read(job).version == versions[-1], "what no page shows does not"


def test_jobs_are_found_by_id_beginning_of_id_and_name(database: Settings, make_job: Make) -> None:
    job = make_job("Train heads")
    newer = make_job("Train heads")
    with db.reading(database) as session:
        assert jobs.find(session, job.id).id == job.id
        assert jobs.find(session, job.id[:12]).id == job.id
        assert jobs.find(session, "Train heads").id == newer.id
        with pytest.raises(NotFound, match="speculoos jobs"):
            jobs.find(session, "nothing")
