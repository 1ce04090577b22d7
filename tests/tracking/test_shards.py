"""Jobs divided into shards: which may run when, and the effects of cancelling, failing and retrying."""

from collections.abc import Callable

import pytest

from speculoos.errors import Cancelled, Conflict, Fenced
from speculoos.settings import Settings
from tracking import changes, db, jobs, listing, processes, shards
from tracking.shards import ShardPlan, ShardSpec
from tracking.states import JobState
from tracking.tables import Job, JobLog

Make = Callable[..., Job]
S = JobState


def do(database: Settings, change: Callable[..., object], *arguments: object, **named: object) -> object:
    with db.writing(database) as session:
        return change(session, *arguments, **named)


def claim(database: Settings, job: Job) -> int | None:
    return do(database, jobs.claim, job.id, "me", 30)


def division(count: int, **results: dict[str, object]) -> ShardPlan:
    """`count` shards of ten rows; `results` by `s<number>` exist already."""
    specs = [ShardSpec({"key": str(n)}, 10, results.get(f"s{n}")) for n in range(count)]
    return ShardPlan("generate_shard", "gpu", "rows", specs)


@pytest.fixture
def divided(database: Settings, make_job: Make) -> Callable[..., Job]:
    """A job that a worker has divided into `count` shards."""

    def make(count: int = 3, name: str = "whole") -> Job:
        job = make_job(name)
        claim(database, job)
        do(database, shards.create_shards, job.id, 1, division(count))
        return job

    return make


def shards_of(database: Settings, job: Job) -> list[Job]:
    with db.reading(database) as session:
        return shards.list_shards(session, job.id)


def stored(database: Settings, job: Job) -> Job:
    with db.reading(database) as session:
        return jobs.get(session, job.id)


def end(database: Settings, shard: Job, state: JobState = S.SUCCEEDED) -> None:
    """Claim a shard and end it."""
    attempt = claim(database, shard)
    if state == S.FAILED:
        do(database, jobs.fail, shard.id, attempt, "unavailable", f"{shard.number} did not answer", "Look at it.")
    else:
        with db.writing(database) as session:
            jobs.get(session, shard.id).done = 10
        do(database, jobs.succeed, shard.id, attempt, {"n": shard.number})


def test_a_divided_job_runs_without_a_worker_and_only_its_shards_can_be_claimed(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(3)
    current = stored(database, job)
    assert (current.state, current.owner, current.shards, current.total, current.unit) == (S.RUNNING, "", 3, 30, "rows")
    assert claim(database, job) is None
    with db.reading(database) as session:
        assert [row.number for row in jobs.publishable(session)] == [0, 1, 2]
        assert jobs.running(session) == [], "nobody holds it, so nobody can have lost it"
        assert [row.id for row in listing.jobs(session)] == [job.id] == [row.id for row in listing.active(session)]
        assert shards.list_shards(session, job.id)[0].name == "whole, shard 1 of 3"


def test_a_job_resumes_once_all_its_shards_have_ended(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(2)
    first, second = shards_of(database, job)
    end(database, first)
    assert do(database, jobs.resume_parents) == 0
    current = stored(database, job)
    assert (current.done, current.progress_note) == (10, "1 of 2 shards done")
    end(database, second)
    assert do(database, jobs.resume_parents) == 1 and do(database, jobs.resume_parents) == 0
    with db.reading(database) as session:
        assert shards.waiting_parent(session, second.id) == job.id
        assert [row.id for row in jobs.publishable(session)] == [job.id]
    assert claim(database, job) == 2
    assert stored(database, job).attempt_cap > jobs.ATTEMPTS, "dividing costs no attempt"


def test_the_remaining_time_is_estimated_between_shards_too(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(3)
    first = shards_of(database, job)[0]
    assert stored(database, job).eta_seconds is None
    claim(database, first)
    with db.writing(database) as session:
        running = jobs.get(session, first.id)
        running.done, running.eta_seconds = 4, 3.0  # two rows a second
    do(database, jobs.resume_parents)
    assert stored(database, job).eta_seconds == 13.0
    with db.writing(database) as session:
        jobs.get(session, first.id).done = 10
    do(database, jobs.succeed, first.id, 1, {})
    do(database, jobs.resume_parents)
    assert stored(database, job).eta_seconds == 10.0, "no shard runs, so none says how fast it is"


def test_a_shard_with_more_to_do_than_planned_changes_the_sum(database: Settings, divided: Callable[..., Job]) -> None:
    """One shard repeats its questions, as an evaluation may; another one has not reported anything yet."""
    job = divided(3)
    first, second, _ = shards_of(database, job)
    for shard in (first, second):
        claim(database, shard)
    with db.writing(database) as session:
        running, silent = jobs.get(session, first.id), jobs.get(session, second.id)
        running.done, running.total, running.eta_seconds = 15, 20, 2.5  # two rows a second
        silent.total = None
    do(database, jobs.resume_parents)
    current = stored(database, job)
    assert (current.done, current.total, current.eta_seconds) == (15, 30, 7.5)


def test_a_job_resumes_once_when_two_processes_see_its_shards_end(
    database: Settings, divided: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process reads before the first one changes the job."""
    job = divided(1)
    end(database, shards_of(database, job)[0])
    with db.reading(database) as session:
        ended = shards.all_ended(session)
    do(database, jobs.resume_parents)
    monkeypatch.setattr(shards, "all_ended", lambda session: ended)  # the race, in a fixed order
    do(database, jobs.resume_parents)
    assert stored(database, job).state == S.INTERRUPTED and claim(database, job) == 2


def test_only_the_running_attempt_divides_a_job_and_not_after_cancellation(database: Settings, make_job: Make) -> None:
    job = make_job()
    claim(database, job)
    with pytest.raises(Fenced):
        do(database, shards.create_shards, job.id, 2, division(2))
    do(database, jobs.request_cancel, job.id)
    with pytest.raises(Cancelled):
        do(database, shards.create_shards, job.id, 1, division(2))
    assert shards_of(database, job) == [] and stored(database, job).owner == "me"


def test_dividing_again_creates_only_what_is_missing(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(3)
    for shard in shards_of(database, job):
        end(database, shard)
    do(database, jobs.resume_parents)
    claim(database, job)
    do(database, shards.create_shards, job.id, 2, division(4, s0={"n": 0}, s2={"n": 2}))
    states = [shard.state for shard in shards_of(database, job)]
    assert states == [S.SUCCEEDED, S.QUEUED, S.SUCCEEDED, S.QUEUED]
    assert [shard.attempt for shard in shards_of(database, job)] == [1, 1, 1, 0]
    assert stored(database, job).done == 20


def test_a_shard_whose_result_exists_already_is_done(database: Settings, make_job: Make) -> None:
    job = make_job()
    claim(database, job)
    do(database, shards.create_shards, job.id, 1, division(2, s1={"rows": 10}))
    assert [shard.state for shard in shards_of(database, job)] == [S.QUEUED, S.SUCCEEDED]
    assert (stored(database, job).done, shards_of(database, job)[1].result) == (10, {"rows": 10})


def test_cancelling_stops_the_shards_and_then_combines_their_results(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(3)
    first, second, third = shards_of(database, job)
    end(database, first)
    attempt = claim(database, second)
    cancelled = do(database, jobs.request_cancel, job.id)
    assert (cancelled.state, cancelled.cancel_requested) == (S.RUNNING, True)
    states = [(shard.state, shard.cancel_requested) for shard in shards_of(database, job)]
    assert states == [(S.SUCCEEDED, False), (S.RUNNING, True), (S.CANCELLED, False)]
    assert do(database, jobs.resume_parents) == 0, "one still saves what it has"
    do(database, jobs.finish_cancelled, second.id, attempt)
    assert do(database, jobs.resume_parents) == 1
    assert claim(database, job) == 2 and stored(database, job).cancel_requested
    do(database, jobs.finish_cancelled, job.id, 2)
    do(database, jobs.retry, job.id)
    assert [shard.state for shard in shards_of(database, job)] == [S.SUCCEEDED, S.QUEUED, S.QUEUED]
    assert stored(database, job).state == S.QUEUED and not shards_of(database, job)[1].cancel_requested


def test_a_job_cancelled_after_its_shards_have_ended_still_combines_them(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(1)
    end(database, shards_of(database, job)[0])
    do(database, jobs.resume_parents)
    assert do(database, jobs.request_cancel, job.id).state == S.INTERRUPTED
    assert claim(database, job) == 2


def test_after_three_failed_shards_the_rest_is_not_started_and_a_retry_runs_them_all(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(5)
    for number, shard in enumerate(shards_of(database, job)[:4]):
        end(database, shard, S.SUCCEEDED if number == 0 else S.FAILED)
    states = [shard.state for shard in shards_of(database, job)]
    assert states == [S.SUCCEEDED, S.FAILED, S.FAILED, S.FAILED, S.CANCELLED]
    with db.reading(database) as session:
        failed = shards.failed(session, job.id)
        assert (failed[0].error, failed[-1].error) == ("1 did not answer", shards.NOT_STARTED_MESSAGE)
        assert shards.tally(session, job.id).summary() == "1 of 5 shards done, 3 failed"
    assert do(database, jobs.resume_parents) == 1
    do(database, jobs.fail, job.id, claim(database, job), "x", "y")
    do(database, jobs.retry, job.id)
    assert [shard.state for shard in shards_of(database, job)] == [S.SUCCEEDED] + [S.QUEUED] * 4


def test_a_shard_cannot_be_cancelled_or_retried_alone(database: Settings, divided: Callable[..., Job]) -> None:
    (shard,) = shards_of(database, divided(1, "Generate answers"))
    for action in (jobs.request_cancel, jobs.retry):
        with pytest.raises(Conflict, match="is a shard of “Generate answers”"):
            do(database, action, shard.id)


def test_deleting_a_job_deletes_its_shards(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(2)
    with pytest.raises(Conflict, match="is running"):
        do(database, changes.delete, database, stored(database, job))
    for shard in shards_of(database, job):
        end(database, shard)
    do(database, jobs.resume_parents)
    do(database, jobs.succeed, job.id, claim(database, job), {})
    with db.writing(database) as session:
        session.add(JobLog(job_id=shards_of(database, job)[0].id, attempt=1, message="gone"))
    with db.writing(database) as session:
        changes.delete(session, database, jobs.get(session, job.id))
    with db.reading(database) as session:
        assert session.query(Job).count() == 0 == session.query(JobLog).count()


def test_many_shards_leave_room_for_others(database: Settings, divided: Callable[..., Job], make_job: Make) -> None:
    divided(shards.MAX_QUEUED_SHARDS + 20)
    other = make_job("other")
    with db.reading(database) as session:
        publishable = jobs.publishable(session)
    assert len(publishable) == shards.MAX_QUEUED_SHARDS + 1 and publishable[-1].id == other.id


def test_a_queue_counts_shards_as_one_job_and_a_later_job_waits_for_them(
    database: Settings, divided: Callable[..., Job], make_job: Make
) -> None:
    job = divided(3)
    with db.writing(database) as session:
        processes.beat(session, "worker-gpu", queue="gpu", concurrency=1)
    claim(database, shards_of(database, job)[0])
    later = make_job("later")
    with db.reading(database) as session:
        queues = listing.Queues(session)
        assert (queues.running, queues.active, queues.position(stored(database, job))) == (1, 2, None)
        assert "shard 1 of 3" in queues.waits_for(later) and queues.waits_for(stored(database, job)) == ""
        before = listing.signature(session)
    do(database, jobs.resume_parents)
    with db.reading(database) as session:
        assert listing.signature(session) != before, "the list shows how far it is"


def test_a_downgrade_removes_shards_and_keeps_the_divided_job(database: Settings, divided: Callable[..., Job]) -> None:
    """An older version would treat shards as separate jobs."""
    job = divided(2)
    with db.writing(database) as session:
        session.add(JobLog(job_id=shards_of(database, job)[0].id, attempt=1, message="of a shard"))
        session.add(JobLog(job_id=job.id, attempt=1, message="of the whole"))
    db.downgrade(database, "0004")
    db.upgrade(database)
    with db.reading(database) as session:
        assert [(row.id, row.shards) for row in session.query(Job)] == [(job.id, 0)]
        assert [row.message for row in session.query(JobLog)] == ["of the whole"]
