"""Engines and sessions: SQLite (WAL, foreign keys, BEGIN IMMEDIATE for writes) or PostgreSQL, and migrations.

`session` is for anything that writes: one short transaction, committed on leaving, rolled back on an error.
`reading` is for queries: it never waits for a writer on SQLite and never commits.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, OperationalError, ProgrammingError
from sqlalchemy.orm import Session

from speculoos.errors import BadInput, SpeculoosError, Unavailable
from speculoos.faults import disk_full
from speculoos.room import give_reserve_up
from speculoos.settings import Settings

if TYPE_CHECKING:
    from alembic.config import Config

BUSY_MILLISECONDS = 10_000
"""How long a writer waits for another one before it gives up."""
WAL_PAGES = 250
"""Pages (of 4 kB) of SQLite's write-ahead log that are put back into the file at the next commit. The default of 1,000
lets rows written every second take 4 MB, which is what a nearly full disk does not have."""

_engines: dict[str, Engine] = {}
_lock = threading.Lock()
_migrating = threading.Lock()  # Alembic keeps its context in module globals


def engine(settings: Settings) -> Engine:
    """The process-wide engine of this database (made once per URL; connects on first use)."""
    with _lock:
        if settings.database_url not in _engines:
            _engines[settings.database_url] = _make_engine(database_url(settings))
        return _engines[settings.database_url]


def database_url(settings: Settings) -> URL:
    """The parsed DATABASE_URL, driver included. Raises BadInput when it cannot be understood."""
    text = settings.database_url
    if text.startswith(("postgres://", "postgresql://")):
        text = "postgresql+psycopg://" + text.split("://", 1)[1]
    try:
        url = make_url(text)
    except ArgumentError:
        raise BadInput(
            "DATABASE_URL is not a URL; expected sqlite:///path/file.db or postgresql://user@host/name."
        ) from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise BadInput(f"DATABASE_URL: {url.get_backend_name()!r} is not supported; use sqlite or postgresql.")
    return url


@contextmanager
def session(settings: Settings) -> Iterator[Session]:
    """A session that may write: committed at the end of the block, rolled back when it raises.

    Objects stay readable after the block. Raises Unavailable when the database cannot be reached or has no tables.
    """
    with _open(settings, engine(settings)) as made:
        yield made
        made.commit()


@contextmanager
def reading(settings: Settings) -> Iterator[Session]:
    """A session for queries only; whatever it changes is thrown away."""
    with _open(settings, engine(settings).execution_options(sqlite_begin="DEFERRED")) as made:
        yield made


def upgrade(settings: Settings, revision: str = "head") -> None:
    """Bring the tables to `revision`, making the SQLite file's folder first. Safe to call from several processes."""
    from alembic import command

    _make_folder(database_url(settings))
    with _migrating, _translated(settings), engine(settings).connect() as connection:
        command.upgrade(alembic_config(connection), revision)


def downgrade(settings: Settings, revision: str) -> None:
    """Take the tables back to `revision` (`base` removes them all)."""
    from alembic import command

    with _migrating, _translated(settings), engine(settings).connect() as connection:
        command.downgrade(alembic_config(connection), revision)


def alembic_config(connection: Connection) -> "Config":
    """Alembic's settings for the package's own `migrations` folder, whatever the working directory."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).resolve().parent.parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def dispose() -> None:
    """Close every pooled connection and forget the engines (tests, and before a fork)."""
    with _lock:
        for made in _engines.values():
            made.dispose()
        _engines.clear()


@contextmanager
def _open(settings: Settings, bind: Engine) -> Iterator[Session]:
    with _translated(settings), Session(bind, expire_on_commit=False) as made:
        yield made


@contextmanager
def _translated(settings: Settings) -> Iterator[None]:
    try:
        yield
    except SpeculoosError:
        raise
    except NoSuchModuleError as error:
        raise BadInput(f"DATABASE_URL: {error}.") from None
    except DBAPIError as error:
        if disk_full(error):
            _shorten_log(settings)
        if sentence := _sentence(settings, error):
            raise Unavailable(sentence) from error
        raise


def _shorten_log(settings: Settings) -> None:
    """Put SQLite's log back into the file and cut it to nothing: most often its pages have a place there already, so
    that the next row can be written although the disk is still full. The reserve is given up for it too."""
    give_reserve_up(settings.home)
    bind = engine(settings)
    if bind.dialect.name == "sqlite":
        with suppress(DBAPIError, sqlite3.Error), bind.connect() as connection:
            connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _sentence(settings: Settings, error: DBAPIError) -> str:
    where = database_url(settings).render_as_string(hide_password=True)
    reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if "no such table" in reason or (isinstance(error, ProgrammingError) and "does not exist" in reason):
        return f"The database {where} is not migrated ({reason}); run `speculoos up`, which does it."
    if disk_full(error):
        return f"The disk that holds the database {where} is full; make room there."
    if isinstance(error, OperationalError):
        return f"The database {where} cannot be used now ({reason}); check DATABASE_URL, the server and the disk."
    return ""


def _make_folder(url: URL) -> None:
    if url.get_backend_name() != "sqlite" or not url.database or url.database == ":memory:":
        return
    folder = Path(url.database).parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"The folder {folder} cannot be made ({error.strerror}); set SPECULOOS_HOME.") from None


def _make_engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        made = sa.create_engine(url, connect_args={"timeout": BUSY_MILLISECONDS / 1000})
        event.listen(made, "connect", _sqlite_connect)
        event.listen(made, "begin", _sqlite_begin)
        return made
    return sa.create_engine(url, pool_pre_ping=True, pool_size=5, max_overflow=10, connect_args={"connect_timeout": 5})


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin or commit on its own; _sqlite_begin does
    for pragma in (
        *(f"busy_timeout={BUSY_MILLISECONDS}", "journal_mode=WAL", f"wal_autocheckpoint={WAL_PAGES}"),
        *("foreign_keys=ON", "synchronous=NORMAL"),
    ):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_begin(connection: Connection) -> None:
    """A transaction that reads and then writes cannot wait for another writer, so writers lock at the beginning."""
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'IMMEDIATE')}")


if __name__ == "__main__":  # `python -m tracking.db`: containers migrate once, before the rest starts
    from speculoos.settings import load

    upgrade(load())
