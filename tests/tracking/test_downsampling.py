"""Metrics for charts: few points, evenly spaced, both ends kept."""

import pytest

from speculoos.settings import Settings
from tracking import jobs, reports
from tracking.db import reading, writing
from tracking.states import JobState


@pytest.fixture
def job_id(home: Settings) -> str:
    with writing(home) as rows:
        job = jobs.create(rows, kind="train", queue="gpu", request={}, name="long")
        job.state, job.attempt = JobState.RUNNING, 1
        rows.flush()
        report = reports.JobReport()
        report.metrics = {("train/loss", step): float(step) for step in range(5, 10_001, 5)}
        report.metrics |= {("eval/loss", step): float(step) for step in (500, 1000, 10_000)}
        reports.write(rows, job.id, 1, report)
        return job.id


def test_a_long_metric_is_thinned_evenly_and_keeps_both_ends(home: Settings, job_id: str) -> None:
    with reading(home) as rows:
        points = reports.sampled_metrics(rows, job_id, points=100)["train/loss"]
    steps = [step for step, _ in points]
    assert (steps[0], steps[-1]) == (5, 10_000)
    assert 90 <= len(steps) <= 102
    assert {b - a for a, b in zip(steps[:-2], steps[1:-1], strict=True)} == {100}


def test_a_short_metric_is_whole(home: Settings, job_id: str) -> None:
    with reading(home) as rows:
        assert [step for step, _ in reports.sampled_metrics(rows, job_id)["eval/loss"]] == [500, 1000, 10_000]


def test_a_job_without_metrics_has_none(home: Settings) -> None:
    with reading(home) as rows:
        assert reports.sampled_metrics(rows, "nothing") == {}


def test_steps_at_uneven_distances_are_thinned_as_evenly(database: Settings) -> None:
    """The first step, and the last one of a training that was stopped early, have other distances."""
    with writing(database) as rows:
        job = jobs.create(rows, kind="train", queue="gpu", request={}, name="odd")
        job.state, job.attempt = JobState.RUNNING, 1
        rows.flush()
        uneven = [1, *range(10, 10_001, 10), 10_003]
        reports.write(rows, job.id, 1, reports.JobReport(metrics={("eval/loss", step): 1.0 for step in uneven}))
    with reading(database) as rows:
        steps = [step for step, _ in reports.sampled_metrics(rows, job.id, points=100)["eval/loss"]]
    assert (steps[0], steps[-1]) == (1, 10_003)
    assert 90 <= len(steps) <= 102
