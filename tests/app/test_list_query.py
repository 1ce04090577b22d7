"""List queries: search in names and notes, order from the URL, and bulk actions."""

from datetime import timedelta

import pytest
from sqlalchemy import select

from app.pages import checkpoints, data, jobs, models
from app.views.checkpoint_rows import checkpoints_table
from app.widgets.bulk import Action, bulk_bar, row_checkbox, run_bulk_action
from app.widgets.list_query import ListQuery, filtered_query, list_url
from app.widgets.picker import pager
from speculoos.errors import Conflict
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.paging import Page
from tracking.tables import Base, Checkpoint, Job, now

FILTERS = ("All", "Done")


@pytest.fixture
def filled(home: Settings) -> Settings:
    with writing(home) as session:
        for number, (name, note) in enumerate([("beta 100%", ""), ("alpha", "of the Beta kind"), ("gamma_1", "")]):
            job = Job(name=name, note=note, kind="train", queue="gpu", state="SUCCEEDED")
            job.created_at = now() + timedelta(seconds=number)
            session.add(job)
    return home


def names(home: Settings, search: str = "", sort: str = "") -> list[str]:
    with reading(home) as session:
        query = select(Job).order_by(Job.created_at.desc())
        return [
            job.name
            for job in session.scalars(filtered_query(query, ListQuery.of({"find": search, "order": sort}, FILTERS)))
        ]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("beta", ["alpha", "beta 100%"]),
        ("BETA kind", ["alpha"]),
        ("%", ["beta 100%"]),
        ("_", ["gamma_1"]),
        ("' or 1=1", []),
        ("  ", ["gamma_1", "alpha", "beta 100%"]),
    ],
)
def test_every_word_is_looked_for_in_names_and_notes_as_it_is(
    filled: Settings, search: str, expected: list[str]
) -> None:
    assert names(filled, search) == expected


def test_lists_can_be_ordered(filled: Settings) -> None:
    assert names(filled, sort="name") == ["alpha", "beta 100%", "gamma_1"]
    assert names(filled, sort="oldest") == ["beta 100%", "alpha", "gamma_1"]
    assert names(filled, sort="; drop") == names(filled) == ["gamma_1", "alpha", "beta 100%"]


def test_an_address_and_its_query() -> None:
    query = ListQuery.of({"show": "Done", "find": " a&b ", "order": "name"}, FILTERS)
    assert query == ListQuery("Done", "a&b", "name")
    assert list_url("jobs", "50.x", query) == "/runs?show=Done&find=a%26b&order=name&from=50.x"
    assert ListQuery.of({"show": "Nonsense", "order": "no"}, FILTERS) == ListQuery.of({}, FILTERS) == ListQuery("All")
    assert list_url("jobs", "", ListQuery("All")) == list_url("jobs") == "/runs"


def test_pages_of_a_narrowed_list_stay_narrowed() -> None:
    html = pager("jobs", Page([], 51, 120, "", "100.x"), ListQuery("Done", "x", "name"))
    assert "/runs?show=Done&amp;find=x&amp;order=name&amp;from=100.x" in html and "Next →" in html


@pytest.mark.parametrize(
    "table", [jobs.table, data.table, models.table, checkpoints_table, checkpoints.CHECKPOINTS.html]
)
def test_an_empty_search_says_so(filled: Settings, table) -> None:
    with reading(filled) as session:
        assert "No matches" in table(session, ListQuery("All", "nobody is called so"), "")
    assert ListQuery("All", "x").is_filtered and ListQuery("Done").is_filtered and not ListQuery("All").is_filtered


def test_a_job_list_has_a_box_before_each_row(filled: Settings) -> None:
    with reading(filled) as session:
        html = jobs.table(session, ListQuery("All"))
    assert html.count("data-choose=") == 3 and "Delete permanently?" in html
    assert "<img" not in row_checkbox("x", "<img src=x>") and "hidden" in bulk_bar({"delete": ("Delete", "Sure?")})


def test_models_can_be_looked_for(home: Settings) -> None:
    with writing(home) as session:
        for name in ("llama", "smol"):
            session.add(Base(name=name, source="folder", location="/x", path="/x", state="ready"))
    with reading(home) as session:
        html = models.table(session, ListQuery("All", "smo"))
    assert "smol" in html and "llama" not in html


def test_drafts_of_one_base_are_listed(home: Settings) -> None:
    with writing(home) as session:
        for name in ("llama", "smol"):
            session.add(Base(id=name, name=name, source="folder", location="/x", path="/x", state="ready"))
            session.flush()
            session.add(Checkpoint(name=f"of {name}", method="medusa", base_id=name))
    query = ListQuery.of({"of": "smol"}, FILTERS)
    with reading(home) as session:
        html, hint = checkpoints_table(session, query), checkpoints.hint(session, {"of": "smol"})
    assert "of smol" in html and "of llama" not in html and "Only drafts of “smol”" in hint
    assert query.is_filtered and list_url("checkpoints", "", query) == "/models/drafts?of=smol"


def test_a_bulk_action_reports_each_reason_once() -> None:
    done: list[str] = []

    def act(row_id: str) -> None:
        if row_id.startswith("bad"):
            raise Conflict("It is in use.", "Stop it first.")
        done.append(row_id)

    message = run_bulk_action(Action("Deleted", act), ["a", "bad 1", "b", "bad 2"])
    assert done == ["a", "b"]
    assert "Deleted: 2." in message and "Not done: 2. It is in use. Stop it first." in message
    assert message.count("It is in use") == 1
