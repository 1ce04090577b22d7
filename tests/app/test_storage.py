"""The Storage page: tables of the usage, and background tasks."""

import threading
from datetime import timedelta

import pytest

from app.pages import storage as storage_view
from app.pages.storage import BackgroundTask, StoragePage
from ops import retention, storage
from speculoos.errors import Conflict
from speculoos.settings import Settings
from tests.ops.conftest import Filled, write
from tracking import db
from tracking.tables import Base, Preference, now

NASTY = "<img src=x onerror=alert(1)> ${7*7}"


@pytest.fixture
def filled(home: Settings) -> Filled:
    return Filled(home)


@pytest.fixture
def page(filled: Filled) -> StoragePage:
    """A page without components, with one finished measurement."""
    page = StoragePage(filled.settings)
    page.storage = storage.StorageMonitor(filled.settings)
    page.storage.measure().join(30)
    return page


def test_every_part_has_a_title(filled: Filled) -> None:
    usage = storage.measure_storage(filled.settings)
    html = storage_view.parts_table(usage)
    for title in ("Models", "Datasets", "Drafts", "Log files", "Uploads", "Database", "Automatic backups"):
        assert title in html
    assert storage_view.PARTS.keys() == usage.parts.keys()


def test_names_are_never_markup(filled: Filled) -> None:
    with db.writing(filled.settings) as session:
        session.get_one(Base, filled.ids["base"]).name = NASTY
    write(filled.settings.home / "models" / NASTY.replace("/", "") / "x", b"x")
    usage = storage.measure_storage(filled.settings)
    leftovers = [storage.Leftover(filled.settings.home / "models" / NASTY.replace("/", ""), 5, now())]
    for html in (
        storage_view.rows_table(usage),
        storage_view.leftovers(leftovers, str(filled.settings.home)),
    ):
        assert "<img" not in html and "${" not in html and "onerror" in html


def test_the_largest_come_first_and_the_list_is_bounded() -> None:
    items = [storage.StorageItem("models", f"{n:032x}", f"model-{n}", bytes=n * 1000) for n in range(500)]
    usage = storage.StorageUsage(now(), items, [], {"leftovers": 0}, 10, 100)
    html = storage_view.rows_table(usage)
    assert html.index("model-499") < html.index("model-498") and "model-100<" not in html
    assert "60 largest of 500" in html


def test_the_page_draws_at_once_and_again_when_something_was_counted(filled: Filled) -> None:
    page = StoragePage(filled.settings)
    page.storage = storage.StorageMonitor(filled.settings)
    first = page.draw()
    assert "Measuring" in first[1] or page.storage.last
    page.storage.measure().join(30)
    update = page.poll(first[0])
    assert "Used by the home folder" in update[1]
    assert not isinstance(page.poll(update[0]), list), "nothing new, nothing drawn"


def test_a_background_task_runs_once_at_a_time_and_reports_its_result() -> None:
    task, release, runs = BackgroundTask(), threading.Event(), []

    def work() -> str:
        release.wait(30)
        runs.append(1)
        return "Removed 3 runs."

    task.start("Cleaning …", work)
    task.start("Cleaning …", work)
    assert "Cleaning" in task.message
    release.set()
    task._thread.join(30)
    assert runs == [1] and "Removed 3 runs." in task.message

    def refuse() -> str:
        raise Conflict("It is used.")

    task.start("Cleaning …", refuse)
    task._thread.join(30)
    assert "It is used." in task.message and "sp-bad" in task.message


def test_the_page_reports_the_last_cleanup(page: StoragePage, filled: Filled) -> None:
    page.clean()
    page.task._thread.join(30)
    assert "Deleted 1 states" in page.task.message
    assert "Last removed just now: 1 states" in page.last_removal_html()
    html = storage_view.last_cleanup(Preference(key=retention.NOTE, value={}, updated_at=now() - timedelta(hours=1)))
    assert "Last cleanup 1 h 0 min ago. Nothing removed so far." in html
    assert "No cleanup yet" in storage_view.last_cleanup(None)
