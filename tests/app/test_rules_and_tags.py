"""Rules of keeping that people choose on the Settings page, tags in notes, and how long attempts took."""

import shutil
from dataclasses import replace
from datetime import timedelta

import pytest

from app.views import job_rows
from app.views.rules_form import RulesForm
from ops import retention
from speculoos.errors import BadInput, Unavailable
from speculoos.settings import Settings
from tracking import reports, rules
from tracking.db import reading, writing
from tracking.tables import Job, JobLog, Run, now
from workers.supervise import worker


def test_a_rule_that_was_chosen_counts_in_the_next_round(home: Settings) -> None:
    with writing(home) as rows:
        rows.add(Run(id="old", kind="chat", state="SUCCEEDED", model="m", created_at=now() - timedelta(days=10)))
    assert retention.clean(home)["runs"].count == 0
    rules.save_rules(home, {"keep_runs_days": 5, "keep_copies": None})
    assert (
        rules.current_settings(home).keep_runs_days == 5
        and rules.current_settings(home).keep_copies == home.keep_copies
    )
    assert retention.clean(home)["runs"].count == 1
    rules.save_rules(home, {"keep_runs_days": None})
    assert rules.current_settings(home) == home


@pytest.mark.parametrize(
    ("name", "value"),
    [("keep_runs_days", -1), ("keep_runs_days", 10**6), ("port", 1), ("min_disk_mb", 0), ("job_memory_mb", 10)],
)
def test_what_is_no_rule_is_refused(home: Settings, name: str, value: int) -> None:
    with pytest.raises(BadInput):
        rules.save_rules(home, {name: value})
    with reading(home) as rows:
        assert rules.chosen_rules(rows) == {}


def test_the_form_keeps_and_shows_them(home: Settings) -> None:
    import gradio as gr

    with gr.Blocks():
        form = RulesForm(home, "rules", rules.RETENTION, "Kept", "", "soon")
        limits = RulesForm(home, "limits", rules.LIMITS, "Limits", "", "soon")
    values = ["" for _ in rules.RETENTION]
    values[0] = "30"
    assert "Saved" in form.kept(*values)
    assert form.values() == values
    assert "expected a whole number" in form.kept("soon", *values[1:])
    assert form.values() == values
    assert "Saved" in limits.kept("500", "", "", "")
    assert (form.values(), limits.values()) == (values, ["500", "", "", ""]), "each leaves the other's alone"
    assert "expected 256 to" in limits.kept("500", "", "0", "") and limits.values()[2] == ""


def test_a_machine_s_own_limits_are_made_stricter_and_never_weaker(home: Settings) -> None:
    rules.save_rules(home, {"min_disk_mb": 2000, "min_memory_mb": 300, "job_memory_mb": 4096, "max_rows": 2_000_000})
    free = rules.current_settings(home)
    assert (free.min_disk_mb, free.min_memory_mb, free.job_memory_mb, free.max_rows) == (2000, 300, 4096, 2_000_000)
    guarded = rules.current_settings(
        replace(home, min_disk_mb=5000, min_memory_mb=100, job_memory_mb=2048, max_rows=10)
    )
    assert (guarded.min_disk_mb, guarded.min_memory_mb, guarded.job_memory_mb) == (5000, 300, 2048)
    assert guarded.max_rows == 2_000_000, "the form of an import may ask for more rows anyway"


def test_who_asks_all_the_time_hears_of_a_choice_within_seconds(home: Settings, monkeypatch) -> None:  # noqa: ANN001
    assert rules.cached_settings(home) == home
    rules.save_rules(home, {"max_rows": 7})
    assert rules.cached_settings(home) == home, "the database is not asked each time"
    monkeypatch.setattr(rules, "RULES_CACHE_SECONDS", 0.0)
    assert rules.cached_settings(home).max_rows == 7
    monkeypatch.setattr(rules, "reading", lambda _: (_ for _ in ()).throw(Unavailable("It is away.")))
    assert rules.cached_settings(home).max_rows == 7, "what was last known holds while the database is away"


def test_a_worker_pauses_by_the_floor_that_was_chosen(home: Settings, monkeypatch) -> None:  # noqa: ANN001
    monkeypatch.setattr(rules, "RULES_CACHE_SECONDS", 0.0)
    home = replace(home, min_disk_mb=0, min_memory_mb=0)
    assert worker.worker_status(home) == {}
    free = shutil.disk_usage(home.home).free // 2**20
    rules.save_rules(home, {"min_disk_mb": min(free * 2, 10_000_000)})
    assert "the minimum is" in worker.worker_status(home)["paused"]
    rules.save_rules(home, {"min_disk_mb": None})
    assert worker.worker_status(home) == {}


def test_each_attempt_says_how_long_it_took(home: Settings) -> None:
    start = now()
    with writing(home) as rows:
        rows.add(Job(id="job", name="job", kind="train", queue="gpu", state="SUCCEEDED"))
        rows.flush()
        for attempt, seconds in ((1, 0), (1, 12), (2, 20), (2, 877)):
            line = JobLog(job_id="job", attempt=attempt, at=start + timedelta(seconds=seconds), message="x")
            rows.add(line)
    with reading(home) as rows:
        html = job_rows.attempts(reports.attempt_seconds(rows, "job"))
    assert "took 12 s" in html and "took 14 min 17 s" in html
    assert job_rows.attempts({1: 5.0}) == ""
