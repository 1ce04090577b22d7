"""Looking at the parts: again and again, in processes that run for weeks."""

from dataclasses import replace

from ops import health
from speculoos.settings import Settings
from tracking import db


def test_looking_at_the_database_again_leaves_nothing_behind(database: Settings) -> None:
    """Statements are compiled once: one made of new tables each time would push all others out of the cache."""
    (found,) = health.check(database, ["database"]).values()
    assert found.ok and "migration" in found.detail
    compiled = len(db.engine(database)._compiled_cache)
    for _ in range(5):
        health.check(database, ["database"])
    assert len(db.engine(database)._compiled_cache) == compiled


def test_a_store_is_looked_at(home: Settings) -> None:
    assert "only in the home" in health.check(home, ["store"])["store"].detail
    assert health.check(replace(home, store="memory://looked-at"), ["store"])["store"].detail.endswith("responds")
    (home.home / "file").write_text("no folder")
    away = health.check(replace(home, store=f"file://{home.home}/file"), ["store"])["store"]
    assert not away.ok and "SPECULOOS_STORE" in away.hint
