"""Jobs that are divided into shards: who may run when, and what stopping, failing and retrying do to all of them."""

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
    """`count` shards of ten rows; `results` by `s<number>` are there already."""
    made = [ShardSpec({"key": str(n)}, 10, results.get(f"s{n}")) for n in range(count)]
    return ShardPlan("generate_shard", "gpu", "rows", made)


@pytest.fixture
def divided(database: Settings, make_job: Make) -> Callable[..., Job]:
    """A job that a worker has divided into so many shards."""

    def make(count: int = 3, name: str = "whole") -> Job:
        job = make_job(name)
        claim(database, job)
        do(database, shards.create_shards, job.id, 1, division(count))
        return job

    return make


def of(database: Settings, job: Job) -> list[Job]:
    with db.reading(database) as session:
        return shards.list_shards(session, job.id)


def stored(database: Settings, job: Job) -> Job:
    with db.reading(database) as session:
        return jobs.get(session, job.id)


def end(database: Settings, shard: Job, how: JobState = S.SUCCEEDED) -> None:
    """Claim a shard and end it."""
    attempt = claim(database, shard)
    if how == S.FAILED:
        do(database, jobs.fail, shard.id, attempt, "unavailable", f"{shard.number} did not answer", "Look at it.")
    else:
        with db.writing(database) as session:
            jobs.get(session, shard.id).done = 10
        do(database, jobs.succeed, shard.id, attempt, {"n": shard.number})


def test_a_divided_job_runs_without_a_worker_and_only_its_shards_can_be_claimed(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(3)
    found = stored(database, job)
    assert (found.state, found.owner, found.shards, found.total, found.unit) == (S.RUNNING, "", 3, 30, "rows")
    assert claim(database, job) is None
    with db.reading(database) as session:
        assert [each.number for each in jobs.publishable(session)] == [0, 1, 2]
        assert jobs.running(session) == [], "nobody holds it, so nobody can have lost it"
        assert [each.id for each in listing.jobs(session)] == [job.id] == [each.id for each in listing.active(session)]
        assert shards.list_shards(session, job.id)[0].name == "whole, shard 1 of 3"


def test_it_goes_on_once_all_its_shards_have_ended(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(2)
    first, second = of(database, job)
    end(database, first)
    assert do(database, jobs.resume_parents) == 0
    found = stored(database, job)
    assert (found.done, found.progress_note) == (10, "1 of 2 shards done")
    end(database, second)
    assert do(database, jobs.resume_parents) == 1 and do(database, jobs.resume_parents) == 0
    with db.reading(database) as session:
        assert shards.waiting_parent(session, second.id) == job.id
        assert [each.id for each in jobs.publishable(session)] == [job.id]
    assert claim(database, job) == 2
    assert stored(database, job).attempt_cap > jobs.ATTEMPTS, "dividing costs no attempt"


def test_the_time_left_is_said_between_shards_too(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(3)
    first = of(database, job)[0]
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


def test_a_shard_that_finds_more_to_do_makes_the_whole_more(database: Settings, divided: Callable[..., Job]) -> None:
    """An evaluation that asks its questions again; and one that has not said anything yet."""
    job = divided(3)
    first, second, _ = of(database, job)
    for shard in (first, second):
        claim(database, shard)
    with db.writing(database) as session:
        running, silent = jobs.get(session, first.id), jobs.get(session, second.id)
        running.done, running.total, running.eta_seconds = 15, 20, 2.5  # two rows a second
        silent.total = None
    do(database, jobs.resume_parents)
    found = stored(database, job)
    assert (found.done, found.total, found.eta_seconds) == (15, 30, 7.5)


def test_two_that_collect_at_once_do_it_once(
    database: Settings, divided: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one has read what the first one changes a moment later."""
    job = divided(1)
    end(database, of(database, job)[0])
    with db.reading(database) as session:
        seen = shards.all_ended(session)
    do(database, jobs.resume_parents)
    monkeypatch.setattr(shards, "all_ended", lambda session: seen)  # the race, its order made certain
    do(database, jobs.resume_parents)
    assert stored(database, job).state == S.INTERRUPTED and claim(database, job) == 2


def test_only_the_attempt_that_runs_divides_a_job_and_not_one_that_is_to_stop(
    database: Settings, make_job: Make
) -> None:
    job = make_job()
    claim(database, job)
    with pytest.raises(Fenced):
        do(database, shards.create_shards, job.id, 2, division(2))
    do(database, jobs.request_cancel, job.id)
    with pytest.raises(Cancelled):
        do(database, shards.create_shards, job.id, 1, division(2))
    assert of(database, job) == [] and stored(database, job).owner == "me"


def test_dividing_again_makes_only_what_is_missing(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(3)
    for shard in of(database, job):
        end(database, shard)
    do(database, jobs.resume_parents)
    claim(database, job)
    do(database, shards.create_shards, job.id, 2, division(4, s0={"n": 0}, s2={"n": 2}))
    states = [shard.state for shard in of(database, job)]
    assert states == [S.SUCCEEDED, S.QUEUED, S.SUCCEEDED, S.QUEUED]
    assert [shard.attempt for shard in of(database, job)] == [1, 1, 1, 0]
    assert stored(database, job).done == 20


def test_a_result_that_is_there_already_is_a_shard_that_is_done(database: Settings, make_job: Make) -> None:
    job = make_job()
    claim(database, job)
    do(database, shards.create_shards, job.id, 1, division(2, s1={"rows": 10}))
    assert [shard.state for shard in of(database, job)] == [S.QUEUED, S.SUCCEEDED]
    assert (stored(database, job).done, of(database, job)[1].result) == (10, {"rows": 10})


def test_stopping_stops_the_shards_and_lets_the_whole_put_together_what_there_is(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(3)
    first, second, third = of(database, job)
    end(database, first)
    attempt = claim(database, second)
    asked = do(database, jobs.request_cancel, job.id)
    assert (asked.state, asked.cancel_requested) == (S.RUNNING, True)
    states = [(shard.state, shard.cancel_requested) for shard in of(database, job)]
    assert states == [(S.SUCCEEDED, False), (S.RUNNING, True), (S.CANCELLED, False)]
    assert do(database, jobs.resume_parents) == 0, "one still saves what it has"
    do(database, jobs.finish_cancelled, second.id, attempt)
    assert do(database, jobs.resume_parents) == 1
    assert claim(database, job) == 2 and stored(database, job).cancel_requested
    do(database, jobs.finish_cancelled, job.id, 2)
    do(database, jobs.retry, job.id)
    assert [shard.state for shard in of(database, job)] == [S.SUCCEEDED, S.QUEUED, S.QUEUED]
    assert stored(database, job).state == S.QUEUED and not of(database, job)[1].cancel_requested


def test_a_job_that_waits_to_be_put_together_is_stopped_by_putting_together(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(1)
    end(database, of(database, job)[0])
    do(database, jobs.resume_parents)
    assert do(database, jobs.request_cancel, job.id).state == S.INTERRUPTED
    assert claim(database, job) == 2


def test_after_three_failed_shards_the_rest_is_not_begun_and_a_retry_makes_them_all(
    database: Settings, divided: Callable[..., Job]
) -> None:
    job = divided(5)
    for number, shard in enumerate(of(database, job)[:4]):
        end(database, shard, S.SUCCEEDED if number == 0 else S.FAILED)
    states = [shard.state for shard in of(database, job)]
    assert states == [S.SUCCEEDED, S.FAILED, S.FAILED, S.FAILED, S.CANCELLED]
    with db.reading(database) as session:
        failed = shards.failed(session, job.id)
        assert (failed[0].error, failed[-1].error) == ("1 did not answer", shards.NOT_STARTED_MESSAGE)
        assert shards.tally(session, job.id).summary() == "1 of 5 shards done, 3 failed"
    assert do(database, jobs.resume_parents) == 1
    do(database, jobs.fail, job.id, claim(database, job), "x", "y")
    do(database, jobs.retry, job.id)
    assert [shard.state for shard in of(database, job)] == [S.SUCCEEDED] + [S.QUEUED] * 4


def test_people_act_on_the_whole(database: Settings, divided: Callable[..., Job]) -> None:
    (shard,) = of(database, divided(1, "Generate answers"))
    for action in (jobs.request_cancel, jobs.retry):
        with pytest.raises(Conflict, match="is a shard of “Generate answers”"):
            do(database, action, shard.id)


def test_the_whole_takes_its_shards_along_when_it_is_deleted(database: Settings, divided: Callable[..., Job]) -> None:
    job = divided(2)
    with pytest.raises(Conflict, match="is running"):
        do(database, changes.delete, database, stored(database, job))
    for shard in of(database, job):
        end(database, shard)
    do(database, jobs.resume_parents)
    do(database, jobs.succeed, job.id, claim(database, job), {})
    with db.writing(database) as session:
        session.add(JobLog(job_id=of(database, job)[0].id, attempt=1, message="gone"))
    with db.writing(database) as session:
        changes.delete(session, database, jobs.get(session, job.id))
    with db.reading(database) as session:
        assert session.query(Job).count() == 0 == session.query(JobLog).count()


def test_many_shards_leave_room_for_others(database: Settings, divided: Callable[..., Job], make_job: Make) -> None:
    divided(shards.MAX_QUEUED_SHARDS + 20)
    other = make_job("other")
    with db.reading(database) as session:
        found = jobs.publishable(session)
    assert len(found) == shards.MAX_QUEUED_SHARDS + 1 and found[-1].id == other.id


def test_a_queue_counts_shards_as_one_job_and_a_later_job_waits_for_them(
    database: Settings, divided: Callable[..., Job], make_job: Make
) -> None:
    job = divided(3)
    with db.writing(database) as session:
        processes.beat(session, "worker-gpu", queue="gpu", concurrency=1)
    claim(database, of(database, job)[0])
    later = make_job("later")
    with db.reading(database) as session:
        queues = listing.Queues(session)
        assert (queues.running, queues.active, queues.position(stored(database, job))) == (1, 2, None)
        assert "shard 1 of 3" in queues.waits_for(later) and queues.waits_for(stored(database, job)) == ""
        before = listing.signature(session)
    do(database, jobs.resume_parents)
    with db.reading(database) as session:
        assert listing.signature(session) != before, "the list shows how far it is"


def test_shards_go_with_their_revision_and_the_whole_stays(database: Settings, divided: Callable[..., Job]) -> None:
    """An older version would take them for jobs of their own."""
    job = divided(2)
    with db.writing(database) as session:
        session.add(JobLog(job_id=of(database, job)[0].id, attempt=1, message="of a shard"))
        session.add(JobLog(job_id=job.id, attempt=1, message="of the whole"))
    db.downgrade(database, "0004")
    db.upgrade(database)
    with db.reading(database) as session:
        assert [(each.id, each.shards) for each in session.query(Job)] == [(job.id, 0)]
        assert [each.message for each in session.query(JobLog)] == ["of the whole"]
