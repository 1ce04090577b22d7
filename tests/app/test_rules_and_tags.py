"""Retention rules chosen on the Settings page, and the durations of attempts."""

from datetime import timedelta

import pytest

from app.views import job_rows
from app.views.settings_forms import RulesForm
from ops import retention
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import reports, retention_rules
from tracking.db import reading, writing
from tracking.tables import Job, JobLog, Run, now


def test_a_chosen_rule_applies_to_the_next_cleanup(home: Settings) -> None:
    with writing(home) as session:
        session.add(Run(id="old", kind="chat", state="SUCCEEDED", model="m", created_at=now() - timedelta(days=10)))
    assert retention.clean(home)["runs"].count == 0
    retention_rules.save_rules(home, {"keep_runs_days": 5, "keep_copies": None})
    assert (
        retention_rules.current_settings(home).keep_runs_days == 5
        and retention_rules.current_settings(home).keep_copies == home.keep_copies
    )
    assert retention.clean(home)["runs"].count == 1
    retention_rules.save_rules(home, {"keep_runs_days": None})
    assert retention_rules.current_settings(home) == home


@pytest.mark.parametrize(
    ("name", "value"),
    [("keep_runs_days", -1), ("keep_runs_days", 10**6), ("port", 1), ("min_disk_mb", 500)],
)
def test_an_invalid_rule_is_refused(home: Settings, name: str, value: int) -> None:
    with pytest.raises(BadInput):
        retention_rules.save_rules(home, {name: value})
    with reading(home) as session:
        assert retention_rules.chosen_rules(session) == {}


def test_the_form_stores_and_shows_the_rules(home: Settings) -> None:
    import gradio as gr

    with gr.Blocks():
        form = RulesForm(home)
    values = ["" for _ in retention_rules.RETENTION]
    values[0] = "30"
    assert "Saved" in form.submit(*values)
    assert form.values() == values
    assert "expected a whole number" in form.submit("soon", *values[1:])
    assert form.values() == values


def test_each_attempt_says_how_long_it_took(home: Settings) -> None:
    start = now()
    with writing(home) as session:
        session.add(Job(id="job", name="job", kind="train", queue="gpu", state="SUCCEEDED"))
        session.flush()
        for attempt, seconds in ((1, 0), (1, 12), (2, 20), (2, 877)):
            line = JobLog(job_id="job", attempt=attempt, at=start + timedelta(seconds=seconds), message="x")
            session.add(line)
    with reading(home) as session:
        html = job_rows.attempts(reports.attempt_seconds(session, "job"))
    assert "took 12 s" in html and "took 14 min 17 s" in html
    assert job_rows.attempts({1: 5.0}) == ""
