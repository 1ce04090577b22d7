"""A sharded job on the pages: one row in the list, and one square per shard on the job's page."""

import re
import time

import pytest

from app.pages import jobs as jobs_page
from app.pages.jobs import head
from app.views import job_rows
from app.views.status_bar import job_chip
from app.widgets.list_query import ListQuery
from speculoos.settings import Settings
from tracking import db, jobs, shards
from tracking.shards import ShardPlan, ShardSpec
from tracking.tables import Job

HOSTILE = "<img src=x onerror=alert(1)>"


def sharded_job(settings: Settings, count: int, rows: int = 10) -> Job:
    """A generation whose first shard is done, whose second failed, whose third runs."""
    with db.writing(settings) as session:
        job = jobs.create(session, kind="generate_data", queue="io", request={}, name=f"answers {HOSTILE}")
        jobs.claim(session, job.id, "worker", 30)
        plan = ShardPlan("generate_shard", "io", "rows", [ShardSpec({"key": str(n)}, rows) for n in range(count)])
        shards.create_shards(session, job.id, 1, plan)
        first, second, third = shards.list_shards(session, job.id)[:3]
        for shard in (first, second, third):
            jobs.claim(session, shard.id, "worker", 30)
        first.done = rows
        session.flush()
        jobs.succeed(session, first.id, 1, {})
        jobs.fail(session, second.id, 1, "unavailable", HOSTILE)
        shards.update_progress(session)
    return job


@pytest.fixture
def job(home: Settings) -> Job:
    return sharded_job(home, 5)


def test_the_list_and_the_strip_show_one_job_with_its_progress(home: Settings, job: Job) -> None:
    with db.reading(home) as session:
        html, chip = jobs_page.table(session, ListQuery("All")), job_chip(session)
    assert html.count("data-pick=") == 1 and "10 of 50 rows" in html and "<img" not in html
    assert "1 of 5 shards done, 1 running, 1 failed" in html
    assert f"/runs?id={job.id}" in chip and "20%" in chip and "waiting" not in chip


def test_its_page_has_a_labelled_square_for_each_shard(home: Settings, job: Job) -> None:
    with db.reading(home) as session:
        html = head(session, jobs.get(session, job.id))
        shard_list = shards.list_shards(session, job.id)
        shard_html = head(session, shard_list[1])
    assert re.findall(r'aria-label="Shard (\d): (\w+), (\d+) of 10"', html) == [
        *[("1", "done", "10"), ("2", "failed", "0"), ("3", "running", "0")],
        *[("4", "waiting", "0"), ("5", "waiting", "0")],
    ]
    assert all(f"/runs?id={shard.id}" in html for shard in shard_list) and "<img" not in html
    assert f'Shard 2 of <a href="/runs?id={job.id}">' in shard_html and "sp-shard-grid" not in shard_html


def test_thousands_of_shards_are_summarized_quickly(home: Settings) -> None:
    job = sharded_job(home, job_rows.SQUARES + 1)
    with db.reading(home) as session:
        began = time.thread_time()
        html, table = head(session, jobs.get(session, job.id)), jobs_page.table(session, ListQuery("All"))
        assert time.thread_time() - began < 0.3
    assert "sp-shard-grid" not in html and f"1 of {job_rows.SQUARES + 1:,} shards" in html.replace("1001", "1,001")
    assert table.count("data-pick=") == 1
