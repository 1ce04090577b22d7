"""The shipped head appears as checkpoint `starter` of model `starter`, and stays away once deleted."""

import json
from pathlib import Path

import pytest

from ops import starter
from speculoos.settings import Settings
from tracking import changes, db, queries
from tracking.tables import Base, Checkpoint


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation with a starter base and a head for it; returns the head's folder."""
    base, head = tmp_path / "starter", tmp_path / "starter_head"
    base.mkdir()
    (base / "card.json").write_text(json.dumps({"weights_sha256": "a" * 64}))
    monkeypatch.setenv("SPECULOOS_STARTER", str(base))
    monkeypatch.setattr(starter, "STARTER_HEAD", head)
    ship(head, "b" * 64)
    return head


def ship(head: Path, sha256: str, base_sha256: str = "a" * 64) -> None:
    head.mkdir(exist_ok=True)
    training = {"settings": {"method": "eagle3"}, "figures": {"step": 7}, "dataset": {"dataset": "7 answers"}}
    config = {"speculoos_method": "eagle3", "base_sha256": base_sha256, "training": training}
    (head / "config.json").write_text(json.dumps(config))
    (head / "model.safetensors").write_bytes(b"12345")
    (head / "SHA256SUMS").write_text(f"{'c' * 64}  config.json\n{sha256}  model.safetensors\n")


def open_home(settings: Settings) -> list[Checkpoint]:
    with db.writing(settings) as session:
        starter.ensure_starter(session, settings)
    with db.writing(settings) as session:
        return queries.checkpoints(session)


def test_it_is_listed_once_and_ready(database: Settings, installed: Path) -> None:
    for _ in range(2):
        (row,) = open_home(database)
    assert (row.name, row.method, row.state, row.path) == ("starter", "eagle3", "ready", str(installed))
    assert (row.sha256, row.size_bytes, row.step, row.base_sha256) == ("b" * 64, 5, 7, "a" * 64)
    with db.writing(database) as session:
        checkpoint = queries.find_checkpoint(session, "starter")
        assert session.get_one(Base, checkpoint.base_id).name == "starter"


def test_once_deleted_it_stays_away_until_another_is_shipped_and_no_file_goes(
    database: Settings, installed: Path
) -> None:
    (row,) = open_home(database)
    with db.writing(database) as session:
        changes.delete(session, database, session.get_one(Checkpoint, row.id))
    assert open_home(database) == [] and (installed / "model.safetensors").exists()
    ship(installed, "d" * 64)
    assert [row.sha256 for row in open_home(database)] == ["d" * 64]


def test_a_newer_head_takes_the_place_of_the_old_one(database: Settings, installed: Path) -> None:
    (before,) = open_home(database)
    ship(installed, "d" * 64)
    (after,) = open_home(database)
    assert (after.id, after.sha256) == (before.id, "d" * 64)


def test_a_row_of_an_earlier_version_learns_which_data_it_was_and_keeps_its_figures(
    database: Settings, installed: Path
) -> None:
    (before,) = open_home(database)
    with db.writing(database) as session:
        row = session.get_one(Checkpoint, before.id)
        row.config, row.figures = {"method": "eagle3"}, {"speedup": 2.0}
    (after,) = open_home(database)
    assert (after.config["data"], after.figures) == ("7 answers", {"speedup": 2.0})


def test_a_head_for_other_weights_or_beside_ones_own_of_that_name_is_left_out(
    database: Settings, installed: Path
) -> None:
    ship(installed, "b" * 64, base_sha256="f" * 64)
    assert open_home(database) == []
    with db.writing(database) as session:
        base = starter.ensure_starter(session, database)
        session.add(Checkpoint(name="starter", method="medusa", base_id=base.id, path="/mine"))
    ship(installed, "b" * 64)
    assert [row.path for row in open_home(database)] == ["/mine"]
