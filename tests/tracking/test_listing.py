"""Lists of jobs, and the sentence about what a job waits for."""

from collections.abc import Callable

from speculoos.settings import Settings
from tracking import db, jobs, listing, processes
from tracking.tables import Job

Make = Callable[..., Job]


def waits(database: Settings, job: Job) -> str:
    with db.reading(database) as session:
        return listing.Queues(session).waits_for(jobs.get(session, job.id))


def start_worker(database: Settings) -> None:
    with db.writing(database) as session:
        processes.beat(session, "worker-gpu", queue="gpu", concurrency=1)


def test_a_waiting_job_says_what_it_waits_for(database: Settings, make_job: Make) -> None:
    first = make_job("first")
    assert waits(database, first) == (
        "Waits for a worker of the gpu queue: none is running; `speculoos up` starts one."
    )
    start_worker(database)
    assert waits(database, first) == "Starts in a moment."
    running = make_job("Train heads", state="RUNNING", done=45, total=100)
    assert waits(database, first) == "Waits for “Train heads” (running, 45 % done)."
    second = make_job("second")
    assert waits(database, second) == "Waits for “Train heads” (running, 45 % done) and 1 more job."
    third = make_job("third", after=running)
    assert waits(database, third) == "Waits for “Train heads”, which is running, 45 % done."
    assert waits(database, running) == ""
    with db.reading(database) as session:
        positions = [listing.Queues(session).position(jobs.get(session, j.id)) for j in (running, first, second, third)]
    assert positions == [None, 1, 2, 3]


def test_queues_do_not_wait_for_each_other(database: Settings, make_job: Make) -> None:
    start_worker(database)
    make_job("download", queue="io", state="RUNNING")
    assert waits(database, make_job("train")) == "Starts in a moment."


def test_lists_are_narrowed_and_the_signature_changes_with_them(database: Settings, make_job: Make) -> None:
    with db.reading(database) as session:
        before = listing.signature(session)
    failed, waiting = make_job("a", state="FAILED"), make_job("b")
    with db.reading(database) as session:
        after = listing.signature(session)
        assert [j.id for j in listing.jobs(session)] == [waiting.id, failed.id]
        assert [j.id for j in listing.active(session)] == [waiting.id]
        assert listing.signature(session) == after != before
    with db.writing(database) as session:
        jobs.request_cancel(session, waiting.id)
    with db.reading(database) as session:
        assert listing.signature(session) != after


def test_a_retried_job_goes_to_the_end_of_the_queue(database: Settings, make_job: Make) -> None:
    first, second = make_job("first", state="FAILED"), make_job("second")
    with db.writing(database) as session:
        jobs.retry(session, first.id)
    with db.reading(database) as session:
        assert [j.id for j in listing.active(session)] == [second.id, first.id]
