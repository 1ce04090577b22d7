"""Health checks, which processes that run for weeks repeat again and again."""

from dataclasses import replace

from ops import health
from speculoos.settings import Settings
from tracking import db


def test_repeated_database_checks_compile_nothing_new(database: Settings) -> None:
    """Statements are compiled once. With new tables for every check they would displace all others in the cache."""
    (status,) = health.check(database, ["database"]).values()
    assert status.ok and "migration" in status.detail
    compiled = len(db.engine(database)._compiled_cache)
    for _ in range(5):
        health.check(database, ["database"])
    assert len(db.engine(database)._compiled_cache) == compiled


def test_a_store_is_checked(home: Settings) -> None:
    assert "only in the home" in health.check(home, ["store"])["store"].detail
    assert health.check(replace(home, store="memory://looked-at"), ["store"])["store"].detail.endswith("responds")
    (home.home / "file").write_text("no folder")
    status = health.check(replace(home, store=f"file://{home.home}/file"), ["store"])["store"]
    assert not status.ok and "SPECULOOS_STORE" in status.hint
