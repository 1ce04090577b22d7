"""Reports of a running job: batches, overwritten steps, values that no database stores."""

from collections.abc import Callable

import pytest

from speculoos.settings import Settings
from tracking import db, jobs, reports
from tracking.tables import Job, Metric, now

Make = Callable[..., Job]


@pytest.fixture
def job(make_job: Make) -> Job:
    return make_job(state="RUNNING", attempt=1)


def write(database: Settings, job: Job, **fields: object) -> bool:
    with db.writing(database) as session:
        return reports.write(session, job.id, 1, reports.JobReport(**fields))


def test_a_resumed_attempt_overwrites_the_steps_it_repeats(database: Settings, job: Job) -> None:
    write(database, job, metrics={("loss", 1): 3.0, ("loss", 2): 2.0, ("top1", 2): 0.1})
    write(database, job, metrics={("loss", 2): 1.5, ("loss", 3): 1.0})
    with db.reading(database) as session:
        assert reports.metrics(session, job.id) == {"loss": [(1, 3.0), (2, 1.5), (3, 1.0)], "top1": [(2, 0.1)]}
        assert reports.metrics(session, job.id, Metric.name == "top1") == {"top1": [(2, 0.1)]}
        assert reports.last_metrics(session, job.id) == {"loss": 1.0, "top1": 0.1}


def test_numbers_that_are_not_finite_and_nul_characters_do_not_stop_a_job(database: Settings, job: Job) -> None:
    write(
        database,
        job,
        metrics={("loss", 1): float("nan"), ("loss", 2): float("inf"), ("loss", 3): 1.0},
        logs=[(now(), "info", "a\x00b" + "x" * 10_000)],
        samples=[(1, {"text": "c\x00d", "p": float("nan")})],
        progress={"progress_note": "e\x00f"},
    )
    with db.reading(database) as session:
        assert reports.metrics(session, job.id) == {"loss": [(3, 1.0)]}
        line = reports.logs(session, job.id)[0].message
        assert line.startswith("a\ufffdb") and len(line) == reports.MESSAGE_LIMIT
        assert reports.samples(session, job.id)[0].record == {"text": "c\ufffdd", "p": None}
        assert jobs.get(session, job.id).progress_note == "e\ufffdf"


def test_log_lines_come_in_order_and_can_be_followed(database: Settings, job: Job) -> None:
    write(database, job, logs=[(now(), "info", f"line {n}") for n in range(5)])
    with db.reading(database) as session:
        first = reports.logs(session, job.id, limit=2)
        assert [line.message for line in first] == ["line 3", "line 4"], "the newest when asked for without a place"
        after = reports.logs(session, job.id, after_id=first[0].id)
        assert [line.message for line in after] == ["line 4"]


def test_a_report_returns_whether_cancellation_was_requested(database: Settings, job: Job) -> None:
    assert write(database, job) is False
    with db.writing(database) as session:
        jobs.request_cancel(session, job.id)
    assert write(database, job) is True


def test_a_heartbeat_alone_does_not_raise_the_version(database: Settings, job: Job) -> None:
    with db.reading(database) as session:
        before = jobs.get(session, job.id)
    write(database, job)
    with db.reading(database) as session:
        after = jobs.get(session, job.id)
    assert after.version == before.version and after.heartbeat_at is not None


def test_deleting_a_job_deletes_its_reports(database: Settings, job: Job) -> None:
    write(database, job, metrics={("loss", 1): 1.0}, logs=[(now(), "info", "x")], samples=[(1, {})])
    with db.writing(database) as session:
        session.delete(session.get_one(Job, job.id))
    with db.reading(database) as session:
        assert reports.logs(session, job.id) == [] and reports.metrics(session, job.id) == {}
