"""A database of every revision is copied and migrated with its rows; commands report a newer or damaged database."""

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.script import ScriptDirectory

from app.views import status_bar
from cli.main import main
from ops import rows
from ops.migrate import copies, keep_copy, migrate
from ops.restore import restore
from speculoos.errors import Unavailable
from speculoos.settings import Settings
from tests.ops.conftest import Filled, rows_of
from tracking import db, revisions
from tracking.tables import Experiment

REVISIONS = revisions.known()


def test_the_known_revisions_are_alembics() -> None:
    config_folder = Path(revisions.FOLDER).parent
    script = ScriptDirectory(str(config_folder))
    assert [r.revision for r in script.walk_revisions()][::-1] == list(REVISIONS)
    assert script.get_current_head() == revisions.head()


def back_to(settings: Settings, revision: str) -> None:
    db.downgrade(settings, "base")
    db.upgrade(settings, revision)


def sample_row(table: sa.Table, keys: dict[str, dict[str, Any]], number: int) -> dict[str, Any]:
    """A row with a value in every column of the table, of whatever type."""
    row: dict[str, Any] = {}
    for column in table.columns:
        foreign = next(iter(column.foreign_keys), None)
        if foreign is not None and foreign.column.table is table:
            row[column.name] = None if number == 0 else keys[table.name][foreign.column.name]
        elif foreign is not None:
            row[column.name] = keys[foreign.column.table.name][foreign.column.name]
        else:
            row[column.name] = sample_value(column, number)
    return row


def sample_value(column: sa.Column[Any], number: int) -> Any:
    kind = column.type
    if isinstance(kind, sa.DateTime):
        return f"2026-11-0{number + 1}T10:11:12.131415+00:00"
    if isinstance(kind, sa.Boolean):
        return number == 1
    if isinstance(kind, sa.Integer):
        return number + 3
    if isinstance(kind, sa.Float | sa.Numeric):
        return number + 0.5
    if isinstance(kind, sa.JSON):
        return {"nested": ["ä", number, None, {"x": 1.5}]}
    assert isinstance(kind, sa.String), f"{column}: say here what a {kind} may hold"
    return f"{column.name[:8]}-{number}"[: kind.length or None]


def fill(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    """Write two rows into every table, whose foreign keys name the first row of other tables; return them as stored."""
    keys: dict[str, dict[str, Any]] = {}
    with db.connection(settings) as connection:
        for table in rows.tables(connection):
            new_rows = [sample_row(table, keys, 0)]
            keys[table.name] = new_rows[0]
            new_rows.append(sample_row(table, keys, 1))
            assert rows.write_rows(connection, table, new_rows) == 2
    return rows_of(settings)


@pytest.mark.parametrize("revision", ["0001", "0003", "0006", "0008"])  # before each one that changes rows
def test_rows_of_every_table_survive_the_migration_from_every_revision(database: Settings, revision: str) -> None:
    back_to(database, revision)
    before = fill(database)
    assert before and all(len(table_rows) == 2 for table_rows in before.values())
    copy = migrate(database)
    after = rows_of(database)
    for table, table_rows in before.items():
        migrated = [{name: row.get(name) for name in table_rows[0]} for row in after[table]]
        assert migrated == table_rows, table
    assert (copy is None) == (revision == revisions.head())
    back_to(database, "head")


def test_a_copy_is_made_before_a_migration_and_can_be_put_back(database: Settings, tmp_path: Path) -> None:
    back_to(database, "0001")
    before = fill(database)
    copy = migrate(database)
    assert copy and copy.name.startswith(f"before-{revisions.head()}-from-0001-")
    assert copy.stat().st_mode & 0o077 == 0 and copy.parent.stat().st_mode & 0o077 == 0
    assert db.revision(database) == revisions.head()
    back = replace(database, home=tmp_path / "back", database_url=f"sqlite:///{tmp_path}/back.db")
    if copy.suffix == ".db":
        Path(tmp_path / "back.db").write_bytes(copy.read_bytes())
        assert rows_of(back) == before
        with sqlite3.connect(copy) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    else:
        (database.home / "models" / "mine").mkdir(parents=True)  # files stay: the copy is of the database alone
        with copy.open("rb") as source:
            restore(replace(back, home=database.home), source, copy.name)
        assert rows_of(back)["experiments"] == before["experiments"]
    back_to(database, "head")


def test_nothing_is_copied_where_nothing_changes_and_few_copies_are_kept(home: Settings) -> None:
    assert migrate(home) is None and not copies(home)
    settings = replace(home, keep_copies=3)
    created = [keep_copy(settings, f"before-000{n}-from-0001") for n in range(5)]
    assert set(copies(home)) == set(created[2:])
    unlimited = keep_copy(replace(home, keep_copies=0), "before-0009-from-0001")
    assert set(copies(home)) == {*created[2:], unlimited}, "0 keeps all"
    assert not [p for p in (home.home / "backups").iterdir() if p.name.startswith(".")]


@pytest.mark.integration
def test_a_copy_that_cannot_be_made_stops_the_migration(small_disk: Path) -> None:
    from speculoos.settings import load

    settings = load({"SPECULOOS_HOME": str(small_disk / "home")})
    db.upgrade(settings, "0001")
    with db.connection(settings) as connection:
        for table in rows.tables(connection):
            if table.name == "experiments":
                rows.write_rows(
                    connection,
                    table,
                    [{**sample_row(table, {}, 0), "id": str(n), "note": "x" * 5000} for n in range(999)],
                )
    db.dispose()
    with (small_disk / "ballast").open("wb") as ballast:
        ballast.write(bytes(int(9e6)))
    with pytest.raises(Unavailable, match="is full"):
        migrate(settings)
    assert db.revision(settings) == "0001" and not copies(settings)


def make_newer(settings: Settings) -> None:
    with db.connection(settings) as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    db.dispose()


MESSAGE = f"was made by a newer Speculoos (revision 9999; this one knows up to {revisions.head()})"


def test_a_newer_database_is_reported_and_not_changed(database: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    make_newer(database)
    try:
        for arguments in (["jobs", "list"], ["models", "list"], ["backup", "/nowhere/x.tar"], ["cleanup"], ["up"]):
            assert main(arguments) == 1, arguments
            stderr = capsys.readouterr().err
            assert MESSAGE in stderr and "Traceback" not in stderr and "secret" not in stderr, arguments
        main(["doctor"])
        assert MESSAGE in capsys.readouterr().out
        with pytest.raises(Unavailable, match="newer"), db.writing(database) as session:
            session.add(Experiment(name="written by chance"))
        assert "newer Speculoos" in status_bar.render(database)
    finally:
        with db.engine(database).begin() as connection:
            connection.execute(sa.text(f"UPDATE alembic_version SET version_num = '{revisions.head()}'"))


@pytest.mark.parametrize("damage", ["header", "pages"])
def test_a_damaged_database_is_reported_with_a_remedy(
    filled_sqlite: Filled, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    settings = filled_sqlite.settings
    db.dispose()
    file = Path(db.database_url(settings).database)
    for ending in ("-wal", "-shm"):
        Path(f"{file}{ending}").unlink(missing_ok=True)
    content = bytearray(file.read_bytes())
    if damage == "header":
        content[:64] = b"x" * 64
    else:
        content[4096:] = b"\xa5" * (len(content) - 4096)
    file.write_bytes(content)
    for arguments in (["jobs", "list"], ["backup", str(settings.home / "x.tar")], ["up"]):
        assert main(arguments) == 1, arguments
        stderr = capsys.readouterr().err
        assert "is damaged" in stderr and str(settings.home / "backups") in stderr and "speculoos restore" in stderr, (
            arguments
        )
    assert "is damaged" in status_bar.render(settings)
    main(["doctor"])
    assert "is damaged" in capsys.readouterr().out
    assert file.read_bytes() == bytes(content), "nothing was written over it"
