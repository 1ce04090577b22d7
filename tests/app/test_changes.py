"""The cost of refreshing pages: few queries for a queue of any length, and one read for many pages."""

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
from app.views import status_bar
from app.widgets.list_query import ListQuery
from speculoos.settings import Settings
from tests.tools.loops import run_async
from tracking import db
from tracking import jobs as rows_of_jobs
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Experiment, Job

QUEUED = 200


@contextmanager
def recorded_queries(settings: Settings) -> Iterator[list[str]]:
    """The SELECT queries sent in the block."""
    queries: list[str] = []

    def record(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if statement.startswith("SELECT"):
            queries.append(statement)

    engine = db.engine(settings)
    event.listen(engine, "before_cursor_execute", record)
    yield queries
    event.remove(engine, "before_cursor_execute", record)


def fill(settings: Settings, count: int) -> None:
    """Add `count` waiting jobs of one experiment, each with a dataset and an evaluated checkpoint."""
    with db.writing(settings) as session:
        if session.get(Base, "base") is None:
            session.add_all([Base(id="base", name="tiny", source="folder", location="/x", state="ready")])
            session.add(Experiment(id="all", name="all"))
            session.flush()
        for _ in range(count):
            job = rows_of_jobs.create(session, kind="train", queue="gpu", request={}, name="train")
            job.experiment_id = "all"
            dataset = Dataset(name=job.id, kind="prompts", job_id=job.id)
            session.add(dataset)
            session.flush()
            figures = {"mean_accepted_length": 2.0}
            heads = Checkpoint(name=job.id, method="medusa", base_id="base", dataset_id=dataset.id, figures=figures)
            session.add(heads)
            session.flush()
            columns = {"state": "ready", "suite": "own", "speedup": 1.2, "tau": 2.0, "questions": job.id[:4]}
            session.add(Evaluation(name=job.id, base_id="base", checkpoint_id=heads.id, result=figures, **columns))


def leaderboard_of(session: Session, query: dict[str, str]) -> list[object]:
    """The list and the fields above it."""
    board = evaluations.EVALUATIONS
    return [board.html(session, board.query_of(query), ""), *board.field_values(session, query)]


def count_queries(settings: Settings, view: Callable[..., object]) -> int:
    with recorded_queries(settings) as queries, db.reading(settings) as session:
        assert view(session)
    return len(queries)


def test_a_list_takes_as_few_queries_for_two_hundred_jobs_as_for_twenty(home: Settings) -> None:
    views = {
        "jobs": lambda session: jobs.table(session, ListQuery("All")),
        "second page": lambda session: jobs.table(
            session, ListQuery("Active"), "50.x" if session.query(Job).count() > 50 else "0.x"
        ),
        "one job": lambda session: head(session, session.query(Job).first()),
        "home": lambda session: home_page.draw(session, ""),
        "models": lambda session: models.table(session, ListQuery("All")),
        "data": lambda session: data.table(session, ListQuery("All")),
        "checkpoints": lambda session: checkpoints.CHECKPOINTS.html(session, ListQuery("All"), ""),
        "evaluations": lambda session: leaderboard_of(session, {}),
        "evaluations sorted": lambda session: leaderboard_of(session, {"sort": "-tau", "temperature": "0"}),
        "experiments": lambda session: experiments.EXPERIMENTS.html(session, ListQuery("All"), ""),
        "an experiment": lambda session: experiments.parts(session, session.get(Experiment, "all")),
        **{
            f"signature of {page}": lambda session, page=page: changes.SIGNATURES[page](session, "") for page in WATCHED
        },
    }
    fill(home, 20)
    few = {name: count_queries(home, view) for name, view in views.items()}
    fill(home, QUEUED - 20)
    many = {name: count_queries(home, view) for name, view in views.items()}
    assert many == few
    assert max(many.values()) <= 15 and many["jobs"] <= 6 and many["signature of jobs"] == 1, many


WATCHED = ("home", "jobs", "models", "data", "checkpoints", "evaluations", "experiments")


def get_changes(client: TestClient, **query: str) -> dict:
    response = client.get("/api/changes", params=query)
    assert response.status_code == 200 and response.headers["cache-control"] == "no-store"
    return response.json()


@pytest.fixture
def client(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A client of the route, with its cache off. The strip omits the disk, whose free space may change at any time."""
    monkeypatch.setattr(changes, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr(status_bar, "disk_chip", lambda home: "")  # tests/app/test_shell.py tests it
    app = FastAPI()
    app.include_router(changes.routes(home))
    with TestClient(app) as client:
        yield client


def test_the_answer_changes_when_rows_do_and_names_the_pause(client: TestClient, home: Settings) -> None:
    first = get_changes(client, page="jobs")
    assert first["wait"] == changes.IDLE and "sp-strip" in first["strip"]["html"]
    again = get_changes(client, page="jobs", strip=first["strip"]["tag"])
    assert again == {"page": first["page"], "wait": changes.IDLE}, "an idle page is told nothing"
    with db.writing(home) as session:
        job = rows_of_jobs.create(session, kind="train", queue="gpu", request={}, name="<b>train")
        other = rows_of_jobs.create(session, kind="train", queue="gpu", request={}, name="other")
        job.state = "RUNNING"
    later = get_changes(client, page="jobs", strip=first["strip"]["tag"])
    assert later["page"] != first["page"] and later["wait"] == changes.LISTED
    assert "train" in later["strip"]["html"] and "<b>train" not in later["strip"]["html"]
    opened = get_changes(client, page="jobs", id=job.id)
    assert opened["wait"] == changes.OPEN
    with db.writing(home) as session:
        session.get(Job, other.id).version += 1
    assert get_changes(client, page="jobs", id=job.id)["page"] == opened["page"], (
        "another job is no reason to draw this one"
    )
    with db.writing(home) as session:
        session.get(Job, job.id).version += 1
    assert get_changes(client, page="jobs", id=job.id)["page"] != opened["page"]


def test_pages_without_rows_get_only_the_strip(client: TestClient) -> None:
    for page in ("", "playground", "../etc"):
        assert get_changes(client, page=page)["page"] == ""


def test_the_signature_is_the_one_that_the_page_remembers(client: TestClient, home: Settings) -> None:
    """Otherwise every poll would redraw the page."""
    fill(home, 2)
    for listing in changes.LISTINGS[:4]:
        with db.reading(home) as session:
            row = session.query(listing.table).first().id
            for row_id in ("", row):
                assert get_changes(client, page=listing.page, id=row_id)["page"] == listing.now(session, row_id)


def test_simultaneous_requests_are_answered_by_one_read(home: Settings) -> None:
    fill(home, 3)

    async def ask_fifty_times() -> list[dict]:
        board = changes.ChangesCache(home)
        return await asyncio.gather(*(board.answer("jobs", "", "") for _ in range(50)))

    with recorded_queries(home) as queries:
        answers = run_async(ask_fifty_times())
    assert len(answers) == 50 and all(answer == answers[0] for answer in answers)
    assert len(queries) <= 6, queries


def test_an_unavailable_database_is_reported_in_the_strip(home: Settings) -> None:
    from dataclasses import replace

    unavailable = replace(home, database_url="sqlite:////nonexistent-folder/x.db")
    answer = run_async(changes.ChangesCache(unavailable).answer("jobs", "", ""))
    assert answer["page"] == "" and "cannot be used now" in answer["strip"]["html"]
