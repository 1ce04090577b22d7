"""The Home page before any job: the race and the quickstart button."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.pages import home as page
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.experiments import jobs_of
from tracking.tables import Experiment, Job, now


def test_the_quickstart_is_offered_until_there_is_work(home: Settings) -> None:
    with writing(home) as session:
        html, button = page.draw(session, "")
        assert 'data-sp="race"' in html and button.visible
        job = Job(id="1" * 32, name="Train", kind="train", queue="gpu", state="RUNNING", created_at=now())
        session.add(job)
        session.flush()
        html, button = page.draw(session, "")
        assert "Train" in html and not button.visible


def test_without_the_starter_the_quickstart_says_what_is_missing(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECULOOS_STARTER", str(tmp_path / "none"))
    error, target = page.quickstart(home)
    assert "The starter model is not installed." in error and target == ""


def test_the_quickstart_opens_its_run(home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "starter").mkdir()
    (tmp_path / "starter" / "card.json").write_text(json.dumps({"weights_sha256": "a" * 64}))
    monkeypatch.setenv("SPECULOOS_STARTER", str(tmp_path / "starter"))
    # jobs are sent only if there is a broker
    without_broker = replace(home, redis_url=f"redis+socket://{tmp_path}/none.sock")
    error, target = page.quickstart(without_broker)
    assert error == ""
    with reading(home) as session:
        run = session.get_one(Experiment, target.removeprefix("/runs/guided?experiment="))
        kinds = [job.kind for job in jobs_of(session, run.id)]
    assert kinds == ["import_prompts", "generate_data", "train", "evaluate", "export"]
