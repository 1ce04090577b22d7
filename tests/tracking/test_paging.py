"""Long lists in pages."""

from datetime import timedelta

import pytest
from sqlalchemy.orm import Session

from speculoos.settings import Settings
from tracking import db, listing, paging
from tracking.paging import Page, page
from tracking.tables import Job, now


def add(session: Session, *names: str) -> None:
    start = now() - timedelta(days=1)
    session.add_all(
        Job(id=name, name=name, kind="train", queue="gpu", created_at=start + timedelta(seconds=float(name)))
        for name in names
    )


@pytest.fixture
def twelve(database: Settings) -> Settings:
    with db.writing(database) as session:
        add(session, *map(str, range(100, 112)))
    return database


def shown(settings: Settings, offset: str | None = "") -> tuple[list[str], Page]:
    assert offset is not None
    with db.reading(settings) as session:
        result = page(session, listing.newest(), offset, size=5)
    return [job.id for job in result.rows], result


def test_every_row_is_on_one_page_and_the_links_lead_back(twelve: Settings) -> None:
    first, here = shown(twelve)
    assert (here.first, here.total, here.newer) == (1, 12, None)
    second, middle = shown(twelve, here.older)
    third, last = shown(twelve, middle.older)
    assert first + second + third == [str(n) for n in range(111, 99, -1)]
    assert (middle.first, middle.newer, last.first, last.total, last.older) == (6, "", 11, 12, None)
    assert shown(twelve, last.newer)[0] == second and shown(twelve, middle.newer)[0] == first


@pytest.mark.parametrize("offset", ["x", "-1.x", "9.", "99999999.x", "9999999999999999999.x", "²."])
def test_an_invalid_offset_gives_some_page(twelve: Settings, offset: str) -> None:
    rows, result = shown(twelve, offset)
    assert rows and result.total == 12


def test_a_long_list_is_counted_up_to_a_limit(twelve: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(twelve)[1].range == "1–5 of 12" and shown(twelve, "10")[1].range == "11–12 of 12"
    monkeypatch.setattr(paging, "MOST_COUNTED", 6)
    assert shown(twelve)[1].range == "1–5 of 6+"
    assert shown(twelve, "5")[1].older == "10" and shown(twelve, "10")[1].range == "11–12 of 12"
    assert Page(["x"], 1, 1, None, None).range == "1"


def test_an_empty_list_has_one_page(database: Settings) -> None:
    assert shown(database, "5.x")[1] == Page([], 0, 0, None, None) == shown(database)[1]
