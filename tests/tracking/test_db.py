"""The database: migrations up and down, no drift from the tables, sessions that commit, clear errors."""

import contextlib
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from sqlalchemy.exc import IntegrityError

from cli.main import main
from speculoos.errors import BadInput, Unavailable
from speculoos.resources import update_reserve
from speculoos.settings import Settings, load
from tracking import db
from tracking.tables import Base, Checkpoint, Dataset, Experiment, Job, JobLog, Preference, Table


def table_names(settings: Settings) -> set[str]:
    with db.engine(settings).connect() as connection:
        return set(sa.inspect(connection).get_table_names())


def test_upgrade_makes_every_table_and_downgrade_removes_them(database: Settings) -> None:
    assert table_names(database) == set(Table.metadata.tables) | {"alembic_version"}
    db.downgrade(database, "base")
    assert table_names(database) == {"alembic_version"}
    db.upgrade(database)
    assert table_names(database) >= set(Table.metadata.tables)


def test_each_change_can_be_taken_back_and_done_again_with_rows_in_the_tables(database: Settings) -> None:
    with db.writing(database) as session:
        first = Job(name="first", kind="train", queue="gpu")
        session.add(first)
        session.flush()
        session.add(Job(name="second", kind="train", queue="gpu", after_id=first.id))
        session.add(JobLog(job_id=first.id, attempt=1, message="kept"))
    db.downgrade(database, "0001")
    db.upgrade(database)
    with db.reading(database) as session:
        assert [job.name for job in session.query(Job).order_by(Job.name)] == ["first", "second"]
        assert session.query(JobLog).one().message == "kept"
        assert session.query(Job).filter_by(name="second").one().after_id == first.id


OLD = "/somewhere/else/home"
UPLOAD = f"uploads/{'ab' * 32}/prompts.jsonl"


def rows_of_an_old_home() -> list[Base | Dataset | Checkpoint | Job]:
    """Rows as versions before revision 0004 wrote them, with absolute paths."""
    base, data, heads, job = "b" * 32, "d" * 32, "c" * 32, "e" * 32
    request = {"method": "medusa", "settings": {"draft_path": f"{OLD}/checkpoints/{heads}/attempt-3", "lr": 0.5}}
    imported = {"path": f"{OLD}/{UPLOAD}", "delete_after": True}
    values = {"kind": "train", "queue": "gpu"}
    return [
        Base(id=base, name="own", source="folder", location=f"{OLD}/{UPLOAD}", path=f"{OLD}/models/{base}"),
        Base(id="f" * 32, name="theirs", source="folder", location="/srv/models/llama", path="/srv/models/llama"),
        Base(id="a" * 32, name="hub", source="hub", location="owner/name", path=""),
        Dataset(id=data, name="data", kind="prompts", path=f"{OLD}/datasets/{data}", config=imported),
        Checkpoint(id=heads, name="heads", method="medusa", base_id=base, path=f"{OLD}/checkpoints/{heads}/attempt-3"),
        Job(id=job, name="train", request=request, result={"path": "/srv/x"}, **values),
        Job(id="9" * 32, name="import", request=imported, **values),
    ]


def write_old_rows(settings: Settings, rows: list[Base | Dataset | Checkpoint | Job]) -> None:
    """Insert rows into the tables of an older revision, which lack later columns."""
    with db.connection(settings) as connection:
        for row in rows:
            table = sa.Table(row.__tablename__, sa.MetaData(), autoload_with=connection)
            later = {c.name for c in row.__table__.columns} - {c.name for c in table.columns}
            values = {c.name: _value(row, c) for c in row.__table__.columns if c.name not in later}
            columns = [sa.column(c.name, c.type) for c in row.__table__.columns if c.name not in later]
            connection.execute(sa.insert(sa.table(row.__tablename__, *columns)).values(values))


def _value(row: Table, column: sa.Column) -> object:
    value, default = getattr(row, column.name), column.default
    if value is not None or default is None:
        return value
    return default.arg(None) if default.is_callable else default.arg


@pytest.mark.parametrize("known_by", ["its own rows", "an upload only"])
def test_paths_of_an_old_home_are_read_in_the_current_home(database: Settings, known_by: str) -> None:
    db.downgrade(database, "0003")
    types = (Base, Dataset, Checkpoint, Job) if known_by == "its own rows" else Job
    write_old_rows(database, [row for row in rows_of_an_old_home() if isinstance(row, types)])
    db.upgrade(database)
    with db.engine(database).connect() as connection:
        texts = [str(connection.execute(sa.text("SELECT request, result FROM jobs")).all())]
        for table in ("bases", "datasets", "checkpoints"):
            texts.append(str(connection.execute(sa.text(f"SELECT path FROM {table}")).all()))
    assert OLD not in "".join(texts) and str(database.home) not in "".join(texts)
    with db.reading(database) as session:
        assert session.get_one(Job, "9" * 32).request["path"] == str(database.home / UPLOAD)
        settings = session.get_one(Job, "e" * 32).request["settings"]
        assert settings == {"draft_path": str(database.home / "checkpoints" / ("c" * 32) / "attempt-3"), "lr": 0.5}
        if known_by == "its own rows":
            paths = {row.name: (row.path, getattr(row, "location", "")) for row in session.query(Base)}
            assert paths["own"] == (str(database.home / "models" / ("b" * 32)), str(database.home / UPLOAD))
            assert paths["theirs"] == ("/srv/models/llama", "/srv/models/llama") and paths["hub"] == ("", "owner/name")
            assert session.query(Dataset).one().path == str(database.home / "datasets" / ("d" * 32))
            assert session.query(Dataset).one().config["path"] == str(database.home / UPLOAD)
    db.downgrade(database, "0003")
    with db.engine(database).connect() as connection:
        (request,) = connection.execute(sa.text("SELECT request FROM jobs WHERE name = 'import'")).one()
        assert str(database.home / UPLOAD) in str(request)
    db.upgrade(database)


def test_migrations_have_not_drifted_from_the_tables(database: Settings) -> None:
    with db.engine(database).connect() as connection:
        command.check(db.alembic_config(connection))


@pytest.mark.integration
def test_upgrade_works_from_any_folder_and_in_three_processes_at_once(home: Settings, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/deep/er/x.db"
    code = "from speculoos.settings import load; from tracking import db; db.upgrade(load())"
    started = [
        subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "DATABASE_URL": url})
        for _ in range(3)
    ]
    assert [process.wait(120) for process in started] == [0, 0, 0]
    assert "jobs" in table_names(replace(home, database_url=url))


def test_all_changes_are_one_transaction(database: Settings) -> None:
    """Otherwise another process could start the next change in between, or a change could be left half done."""
    db.downgrade(database, "base")
    commits: list[sa.Connection] = []
    sa.event.listen(db.engine(database), "commit", commits.append)
    db.upgrade(database)
    assert len(commits) == 1


def test_a_session_commits_at_the_end_and_rolls_back_on_an_error(database: Settings) -> None:
    with db.writing(database) as session:
        session.add(Experiment(name="kept"))
    with pytest.raises(RuntimeError), db.writing(database) as session:
        session.add(Experiment(name="lost"))
        session.flush()
        raise RuntimeError
    with db.reading(database) as session:
        assert list(session.scalars(sa.select(Experiment.name))) == ["kept"]
        session.add(Experiment(name="thrown away"))
    with db.reading(database) as session:
        assert session.scalar(sa.select(sa.func.count()).select_from(Experiment)) == 1


def test_foreign_keys_are_enforced(database: Settings) -> None:
    with pytest.raises(IntegrityError), db.writing(database) as session:
        session.add(Dataset(name="orphan", kind="prompts", source_id="f" * 32))


def test_writers_wait_for_each_other_instead_of_failing(database: Settings) -> None:
    """Read, then write, in many threads: a deferred transaction would end in `database is locked`."""
    with db.writing(database) as session:
        session.add(Preference(key="count", value={"n": 0}))
    errors: list[Exception] = []

    def add_ten() -> None:
        try:
            for _ in range(10):
                with db.writing(database) as session:
                    row = session.get(Preference, "count", with_for_update=True)
                    row.value = {"n": row.value["n"] + 1}
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add_ten) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors
    with db.reading(database) as session:
        assert session.get(Preference, "count").value == {"n": 80}


def test_a_database_without_tables_names_the_command_that_creates_them(home: Settings, tmp_path: Path) -> None:
    empty = replace(home, database_url=f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(Unavailable, match="speculoos up"), db.reading(empty) as session:
        session.scalar(sa.select(Experiment.id))


@pytest.mark.parametrize(
    "url",
    ["sqlite:////nonexistent-folder/x.db", "postgresql://me:sesame@127.0.0.1:9/none"],
    ids=["sqlite", "postgresql"],
)
def test_an_unreachable_database_is_named_without_its_password(home: Settings, url: str) -> None:
    with pytest.raises(Unavailable) as error, db.reading(replace(home, database_url=url)) as session:
        session.scalar(sa.select(Experiment.id))
    assert "cannot be used now" in str(error.value)
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize("url", ["nonsense", "mysql://host/name"])
def test_a_wrong_database_url_is_bad_input(home: Settings, url: str) -> None:
    with pytest.raises(BadInput, match="DATABASE_URL"):
        db.upgrade(replace(home, database_url=url))


@pytest.mark.integration
def test_a_full_disk_is_named_and_rows_already_in_the_file_can_be_updated(small_disk: Path) -> None:
    """The log of a database that is written every second is truncated regularly, so it does not keep its space."""
    full = load({"SPECULOOS_HOME": str(small_disk)})
    db.upgrade(full)
    db.dispose()  # closed once: its tables are in the file, not in the log alone

    def beat(number: int) -> None:
        with db.writing(full) as session:
            session.merge(Preference(key="beat", value={"n": number}))

    def fill() -> None:
        with (small_disk / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while True:
                ballast.write(b"0" * 4096)

    [beat(number) for number in range(50)]
    fill()
    with pytest.raises(Unavailable, match="The disk that holds the database .* is full; free some space"):
        [beat(number) for number in range(50, 2000)]
    [beat(number) for number in range(2000, 2040)]
    with db.reading(full) as session:
        assert session.get(Preference, "beat").value == {"n": 2039}


@pytest.mark.integration
def test_a_home_on_a_full_disk_is_opened_once_the_reserve_is_given_up(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No process has the database open, so SQLite must create the index of its log first."""
    monkeypatch.setenv("SPECULOOS_HOME", str(small_disk / "home"))
    full = load()
    db.upgrade(full)
    db.dispose()
    assert update_reserve(full)
    with (small_disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"0" * 4096)
    assert main(["endpoints", "add", "x", "--url", "http://a"]) == 1
    assert "No space left on device. Free some space on the disk of the home folder" in capsys.readouterr().err
    with pytest.raises(Unavailable, match="The disk that holds the database .* is full; free some space"):
        read(full)
    assert read(full) == []


def read(settings: Settings) -> list[Job]:
    with db.reading(settings) as session:
        return session.query(Job).all()


@pytest.mark.sqlite
def test_the_log_of_many_rows_stays_short(home: Settings) -> None:
    for number in range(500):
        with db.writing(home) as session:
            session.merge(Preference(key="beat", value={"n": number}))
    log = Path(db.database_url(home).database + "-wal")
    assert log.stat().st_size < 1.5 * 2**20, "SQLite's own 1,000 pages are 4 MB"


def test_values_that_databases_refuse_are_replaced_in_keys_too(database: Settings) -> None:
    with db.writing(database) as session:
        session.add(Preference(key="odd", value={"a\x00b": ["\x00\ud83d", float("nan"), {"c": float("inf")}]}))
    with db.reading(database) as session:
        assert session.get(Preference, "odd").value == {"a\ufffdb": ["\ufffd\ufffd", None, {"c": None}]}


@pytest.mark.sqlite
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("request", "'{\"a\":'"),
        ("result", "'[1]'"),
        ("created_at", "'2026-zz'"),
        ("name", "CAST(x'80ff' AS TEXT)"),
    ],
)
def test_a_value_that_cannot_be_read_is_a_damaged_database(home: Settings, column: str, value: str) -> None:
    with db.writing(home) as session:
        session.add(Job(name="first", kind="train", queue="gpu"))
        session.flush()
        session.execute(sa.text(f"UPDATE jobs SET {column} = {value}"))
    with pytest.raises(Unavailable, match="is damaged .*speculoos restore"), db.reading(home) as session:
        session.query(Job).all()


@pytest.mark.integration
def test_a_read_only_disk_is_named_in_one_sentence(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite writes files next to the database even to read it."""
    monkeypatch.setenv("SPECULOOS_HOME", str(small_disk / "home"))
    assert main(["models"]) == 0
    db.dispose()
    capsys.readouterr()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for args in (["up"], ["jobs"], ["models"], ["verify"], ["backup", "/nowhere/x.tar"], ["endpoints", "add", "x"]):
        url = ["--url", "http://a"] if args[0] == "endpoints" else []
        assert main([*args, *url]) == 1, args
        stderr = capsys.readouterr().err
        assert str(small_disk) in stderr and "SPECULOOS_HOME" in stderr and "Traceback" not in stderr, args
