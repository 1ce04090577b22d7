"""The page of a running generation: sums over its shards, speeds of running shards, and escaped text."""

import pytest

from app.pages.jobs import head, no_charts, samples
from app.views import generation_view
from speculoos.settings import Settings
from tests.app.test_changes import recorded_queries
from tests.app.test_shard_rows import HOSTILE, sharded_job
from tracking import db, jobs, reports, shards
from tracking.reports import JobReport
from tracking.tables import Job


def report_progress(settings: Settings, shard: Job, **values: float) -> None:
    """Write the metrics and samples that the run of a shard reports."""
    metrics = {(f"now/{name}", 0): value for name, value in values.items()}
    answer = {"id": "line-1", "prompt": f"ask {HOSTILE}", "text": f"say {HOSTILE}", "finish": "length"}
    left_out = {"id": "line-2", "prompt": "p", "text": HOSTILE, "kind": "cut", "reason": f"cut {HOSTILE}"}
    with db.writing(settings) as session:
        reports.write(session, shard.id, 1, JobReport(metrics=metrics, samples=[(0, answer), (1, left_out)]))


@pytest.fixture
def job(home: Settings) -> Job:
    """A generation of five shards, two of which run with two workers, on two servers."""
    job = sharded_job(home, 5)
    with db.writing(home) as session:
        shard_list = shards.list_shards(session, job.id)
        jobs.claim(session, shard_list[3].id, "other worker", 30)
    for number, speed in ((2, 40.0), (3, 60.0)):
        counts = {"rows": 4, "tokens": 400, "left_out/cut": 2, "left_out/empty": 1}
        report_progress(
            home, shard_list[number], **counts, **{"speed": speed, "speed/pair 1": speed / 4, "speed/pair 2": speed / 2}
        )
    return job


def test_counters_and_speeds_are_those_of_all_shards(home: Settings, job: Job) -> None:
    with db.reading(home) as session:
        now = reports.generation_progress(session, job.id)
        alone = reports.generation_progress(session, shards.list_shards(session, job.id)[2].id)
    assert (now.rows, now.tokens, now.speed) == (8, 800, 100.0)
    assert now.workers == {"worker": 40.0, "other worker": 60.0}
    assert now.servers == {"pair 1": 25.0, "pair 2": 50.0} and now.left_out == {"cut": 4, "empty": 2}
    assert (alone.rows, alone.speed) == (4, 40.0)


def test_speeds_are_of_what_runs_and_counts_of_all(home: Settings, job: Job) -> None:
    with db.writing(home) as session:
        jobs.succeed(session, shards.list_shards(session, job.id)[3].id, 1, {})
        now = reports.generation_progress(session, job.id)
    assert now.workers == {"worker": 40.0} and now.rows == 8


def test_the_page_says_it_all_and_shows_foreign_text_as_text(home: Settings, job: Job) -> None:
    with db.reading(home) as session:
        row = jobs.get(session, job.id)
        html, samples_html = head(session, row), samples(session, row)
        assert not no_charts(row).startswith("The first numbers")
    for text in (
        "800",
        "100",
        "other worker",
        "pair 2",
        "The response was truncated",
    ):
        assert text in html, text
    assert (
        "say &lt;img" in samples_html and "truncated at the limit" in samples_html and "<img" not in html + samples_html
    )


def test_a_page_takes_as_few_queries_for_many_shards_as_for_few(home: Settings) -> None:
    few, many = sharded_job(home, 3), sharded_job(home, 60)
    query_counts = []
    for job in (few, many):
        with db.reading(home) as session:
            shard_list = shards.list_shards(session, job.id)
        for shard in shard_list[2:3]:
            report_progress(home, shard, rows=1, tokens=5, speed=1, **{"left_out/cut": 1})
        with recorded_queries(home) as queries, db.reading(home) as session:
            row = session.get_one(Job, job.id)
            assert head(session, row) and samples(session, row)
        query_counts.append(len(queries))
    assert query_counts[0] == query_counts[1] <= 14


def test_counters_are_no_charts(home: Settings, job: Job) -> None:
    with db.writing(home) as session:
        shard = shards.list_shards(session, job.id)[2]
        reports.write(session, shard.id, 1, JobReport(metrics={("generate/tokens_per_second", 7): 40.0}))
        metrics = reports.sampled_metrics(session, shard.id, excluded_prefix=reports.COUNTER_PREFIX)
    assert metrics == {"generate/tokens_per_second": [(7, 40.0)]}


def test_other_jobs_show_nothing_of_it(home: Settings) -> None:
    with db.writing(home) as session:
        job = jobs.create(session, kind="train", queue="gpu", request={}, name="heads")
        assert generation_view.part(session, job) == "" and generation_view.first_answers(session, job) == ""
