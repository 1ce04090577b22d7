"""The user of a job: the name entered at the login, or the account that ran the command."""

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from app.main import make_app
from app.views import job_rows, settings_forms
from cli.main import main
from speculoos.errors import BadInput
from speculoos.people import current_user
from speculoos.settings import Settings
from tests.tools.asgi import gradio_app
from tests.tools.loops import run_async
from tracking import jobs
from tracking.db import reading, writing
from tracking.logins import Sessions, Visitor
from tracking.tables import Dataset, Job, now

NASTY = "<img src=x onerror=alert(1)>"


def newest_job(home: Settings) -> Job:
    with reading(home) as session:
        return session.scalars(select(Job).order_by(Job.created_at.desc())).first()


def press_sample(client: TestClient, pages: Any) -> None:
    """Press the Data page's button for the built-in prompts."""
    blocks = gradio_app(pages).get_blocks()
    (button,) = [b for b in blocks.blocks.values() if getattr(b, "elem_id", "") == "data-add-quickstart-prompts"]
    fn = next(f for f in blocks.fns.values() if (button._id, "click") in f.targets)
    body = {"data": [], "fn_index": fn._id, "session_hash": "x"}
    response = client.post("/gradio_api/run/predict", json=body)
    assert response.status_code == 200, response.text


def test_a_job_created_on_a_page_has_the_name_of_the_login(home: Settings) -> None:
    pages = make_app(replace(home, password="cinnamon"))
    for name in ("Ada", NASTY, ""):
        client = TestClient(pages, base_url="http://127.0.0.1:7860")
        client.post("/login", data={"password": "cinnamon", "name": name})
        press_sample(client, pages)
        assert newest_job(home).user == name
        with writing(home) as session:  # so that the set is added again
            session.execute(update(Dataset).values(state="failed"))


def test_a_name_is_shown_as_text_and_only_where_there_is_one() -> None:
    job = Job(id="1" * 32, name="Train x", kind="train", state="QUEUED", user=NASTY, done=0, created_at=now())
    for html in (job_rows.jobs_table([job], {}), job_rows.title(job)):
        assert "<img" not in html and "Train draft · &lt;img" in html
    job.user = ""
    assert "·" not in job_rows.title(job)


def test_a_name_that_cannot_be_kept_is_refused(home: Settings) -> None:
    for name in ("x" * 81, "a\u202eb", "a\nb"):
        with writing(home) as session, pytest.raises(BadInput, match="name"):
            jobs.create(session, kind="train", queue="gpu", request={}, name="x", user=name)


def test_a_command_gives_the_name_of_its_account(home: Settings, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("cli.follow.run_jobs", lambda settings, submit, queues, wait: submit())
    prompts = home.home / "prompts.jsonl"
    prompts.write_text('{"prompt": "Why?"}\n')
    main(["data", "import", str(prompts), "--name", "mine"])
    assert newest_job(home).user == current_user() != ""
    capsys.readouterr()
    assert main(["jobs", "list"]) == 0
    assert current_user() in capsys.readouterr().out


def test_a_user_can_change_their_name_on_the_settings_page(home: Settings) -> None:
    settings = replace(home, login="token")
    sessions = Sessions(settings)
    value = sessions.begin("Ada")
    visitor = run_async(sessions.find(value))
    assert isinstance(visitor, Visitor) and visitor.user == "Ada"
    assert "Grace" in settings_forms.rename(sessions, visitor, " Grace ")
    assert run_async(sessions.find(value)).user == "Grace"
    assert "at most 80" in settings_forms.rename(sessions, visitor, "x" * 81)
    assert "login-link" in settings_forms.access_notice(settings, visitor)
