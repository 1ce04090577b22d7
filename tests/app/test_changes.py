"""What it costs to keep pages fresh: few queries however long the queue is, and one look for many pages."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import event
from sqlalchemy.orm import Session

from app import changes
from app.pages import checkpoints, data, evaluations, experiments, jobs, models
from app.pages import home as home_page
from app.pages.jobs import head
from app.widgets.list_query import ListQuery
from speculoos.settings import Settings
from tests.tools.loops import run_async
from tracking import db
from tracking import jobs as rows_of_jobs
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Experiment, Job

QUEUED = 200


@contextmanager
def counted(settings: Settings) -> Iterator[list[str]]:
    """The queries sent in the block."""
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("SELECT"):
            sent.append(statement)

    engine = db.engine(settings)
    event.listen(engine, "before_cursor_execute", note)
    yield sent
    event.remove(engine, "before_cursor_execute", note)


def fill(settings: Settings, count: int) -> None:
    """As many waiting jobs, each with a dataset and a checkpoint that was measured; all of one experiment."""
    with db.writing(settings) as session:
        if session.get(Base, "base") is None:
            session.add_all([Base(id="base", name="tiny", source="folder", location="/x", state="ready")])
            session.add(Experiment(id="all", name="all"))
            session.flush()
        for _ in range(count):
            job = rows_of_jobs.create(session, kind="train", queue="gpu", request={}, name="train")
            job.experiment_id = "all"
            made = Dataset(name=job.id, kind="prompts", job_id=job.id)
            session.add(made)
            session.flush()
            figures = {"mean_accepted_length": 2.0}
            heads = Checkpoint(name=job.id, method="medusa", base_id="base", dataset_id=made.id, figures=figures)
            session.add(heads)
            session.flush()
            measured = {"state": "ready", "suite": "own", "speedup": 1.2, "tau": 2.0, "questions": job.id[:4]}
            session.add(Evaluation(name=job.id, base_id="base", checkpoint_id=heads.id, result=figures, **measured))


def leaderboard_of(session: Session, query: dict[str, str]) -> list[object]:
    """The list and the boxes above it."""
    board = evaluations.EVALUATIONS
    return [board.html(session, board.query_of(query), ""), *board.field_values(session, query)]


def looked(settings: Settings, look: Callable[..., object]) -> int:
    with counted(settings) as sent, db.reading(settings) as session:
        assert look(session)
    return len(sent)


def test_a_list_takes_as_few_queries_for_two_hundred_jobs_as_for_twenty(home: Settings) -> None:
    looks = {
        "jobs": lambda rows: jobs.table(rows, ListQuery("All")),
        "second page": lambda rows: jobs.table(
            rows, ListQuery("Active"), "50.x" if rows.query(Job).count() > 50 else "0.x"
        ),
        "one job": lambda rows: head(rows, rows.query(Job).first()),
        "home": lambda rows: home_page.draw(rows, ""),
        "models": lambda rows: models.table(rows, ListQuery("All")),
        "data": lambda rows: data.table(rows, ListQuery("All")),
        "checkpoints": lambda rows: checkpoints.CHECKPOINTS.html(rows, ListQuery("All"), ""),
        "evaluations": lambda rows: leaderboard_of(rows, {}),
        "evaluations sorted": lambda rows: leaderboard_of(rows, {"sort": "-tau", "temperature": "0"}),
        "experiments": lambda rows: experiments.EXPERIMENTS.html(rows, ListQuery("All"), ""),
        "an experiment": lambda rows: experiments.parts(rows, rows.get(Experiment, "all")),
        **{f"signature of {page}": lambda rows, page=page: changes.SIGNATURES[page](rows, "") for page in WATCHED},
    }
    fill(home, 20)
    few = {name: looked(home, look) for name, look in looks.items()}
    fill(home, QUEUED - 20)
    many = {name: looked(home, look) for name, look in looks.items()}
    assert many == few
    assert max(many.values()) <= 15 and many["jobs"] <= 6 and many["signature of jobs"] == 1, many


WATCHED = ("home", "jobs", "models", "data", "checkpoints", "evaluations", "experiments")


def ask(client: TestClient, **query: str) -> dict:
    answer = client.get("/api/changes", params=query)
    assert answer.status_code == 200 and answer.headers["cache-control"] == "no-store"
    return answer.json()


@pytest.fixture
def client(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The route, with nothing kept between two questions."""
    monkeypatch.setattr(changes, "CACHE_SECONDS", 0.0)
    app = FastAPI()
    app.include_router(changes.routes(home))
    with TestClient(app) as made:
        yield made


def test_the_answer_changes_when_rows_do_and_names_the_pause(client: TestClient, home: Settings) -> None:
    first = ask(client, page="jobs")
    assert first["wait"] == changes.IDLE and "sp-strip" in first["strip"]["html"]
    again = ask(client, page="jobs", strip=first["strip"]["tag"])
    assert again == {"page": first["page"], "wait": changes.IDLE}, "an idle page is told nothing"
    with db.writing(home) as session:
        job = rows_of_jobs.create(session, kind="train", queue="gpu", request={}, name="<b>train")
        other = rows_of_jobs.create(session, kind="train", queue="gpu", request={}, name="other")
        job.state = "RUNNING"
    later = ask(client, page="jobs", strip=first["strip"]["tag"])
    assert later["page"] != first["page"] and later["wait"] == changes.LISTED
    assert "train" in later["strip"]["html"] and "<b>train" not in later["strip"]["html"]
    opened = ask(client, page="jobs", id=job.id)
    assert opened["wait"] == changes.OPEN
    with db.writing(home) as session:
        session.get(Job, other.id).version += 1
    assert ask(client, page="jobs", id=job.id)["page"] == opened["page"], "another job is no reason to draw this one"
    with db.writing(home) as session:
        session.get(Job, job.id).version += 1
    assert ask(client, page="jobs", id=job.id)["page"] != opened["page"]


def test_pages_that_live_from_no_rows_get_the_strip_alone(client: TestClient) -> None:
    for page in ("", "playground", "../etc"):
        assert ask(client, page=page)["page"] == ""


def test_the_signature_is_the_one_that_the_page_remembers(client: TestClient, home: Settings) -> None:
    """Else every question would make it draw itself anew."""
    fill(home, 2)
    for what in changes.LISTINGS[:4]:
        with db.reading(home) as session:
            row = session.query(what.table).first().id
            for row_id in ("", row):
                assert ask(client, page=what.page, id=row_id)["page"] == what.now(session, row_id)


def test_many_pages_that_ask_at_once_are_answered_by_one_look(home: Settings) -> None:
    fill(home, 3)

    async def fifty() -> list[dict]:
        board = changes.ChangesCache(home)
        return await asyncio.gather(*(board.answer("jobs", "", "") for _ in range(50)))

    with counted(home) as sent:
        answers = run_async(fifty())
    assert len(answers) == 50 and all(answer == answers[0] for answer in answers)
    assert len(sent) <= 6, sent


def test_a_database_that_is_away_is_said_in_the_strip(home: Settings) -> None:
    from dataclasses import replace

    away = replace(home, database_url="sqlite:////nonexistent-folder/x.db")
    answer = run_async(changes.ChangesCache(away).answer("jobs", "", ""))
    assert answer["page"] == "" and "cannot be used now" in answer["strip"]["html"]
