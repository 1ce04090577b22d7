"""Engines and sessions: SQLite (WAL, foreign keys, BEGIN IMMEDIATE for writes) or PostgreSQL, and migrations.

Use `writing` for any change: one short transaction, committed at the end, rolled back on an error.
Use `reading` for queries: it never waits for a writer on SQLite and never commits.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    ProgrammingError,
)
from sqlalchemy.orm import Session

from speculoos.errors import BadInput, Unavailable
from speculoos.faults import disk_full
from speculoos.resources import delete_reserve, is_disk_full
from speculoos.settings import Settings
from tracking import revisions
from tracking.path_columns import set_home

if TYPE_CHECKING:
    from alembic.config import Config

BACKUPS = "backups"  # folder of the home with the database copies created before migrations
DAMAGED = (
    *("malformed", "not a database", "decode to UTF-8"),
    *("database corruption", "invalid page in block", "could not read block"),
)
"""Parts of SQLite's and PostgreSQL's errors for damaged files."""
BUSY_MILLISECONDS = 10_000  # timeout of a writer that waits for another one
WAL_PAGES = 250
"""Pages (of 4 kB) in SQLite's write-ahead log after which a commit writes a checkpoint. With the default of 1,000 the
log grows to 4 MB, which may not fit on a nearly full disk."""

_engines: dict[tuple[str, Path], Engine] = {}
_checked: set[str] = set()  # URLs of databases whose revision was checked
_lock = threading.Lock()
_migrating = threading.Lock()  # Alembic keeps its context in module globals


def engine(settings: Settings) -> Engine:
    """The process-wide engine of this database and home (created once; connects on first use)."""
    with _lock:
        key = settings.database_url, settings.home
        if key not in _engines:
            _engines[key] = _make_engine(database_url(settings))
            set_home(_engines[key], settings.home)
        return _engines[key]


def database_url(settings: Settings) -> URL:
    """The parsed DATABASE_URL, with the driver. Raises BadInput if it is invalid or not supported."""
    text = settings.database_url
    if text.startswith(("postgres://", "postgresql://")):
        text = "postgresql+psycopg://" + text.split("://", 1)[1]
    try:
        url = make_url(text)
    except ArgumentError:
        expected = "sqlite:///path/file.db or postgresql://user@host/name"
        raise BadInput(f"DATABASE_URL is not a URL; expected {expected}.") from None
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise BadInput(f"DATABASE_URL: {url.get_backend_name()!r} is not supported; use sqlite or postgresql.")
    return url


@contextmanager
def writing(settings: Settings) -> Iterator[Session]:
    """A session for changes: committed at the end of the block, rolled back if it raises. Raises Unavailable."""
    with _open(settings, engine(settings)) as session:
        yield session
        session.commit()


@contextmanager
def reading(settings: Settings) -> Iterator[Session]:
    """A session for queries only; changes are rolled back."""
    with _open(settings, engine(settings).execution_options(sqlite_begin="DEFERRED")) as session:
        yield session


@contextmanager
def snapshot(settings: Settings) -> Iterator[Connection]:
    """A connection for queries that sees a snapshot of the database, regardless of later writes."""
    sqlite = engine(settings).dialect.name == "sqlite"
    options = {"sqlite_begin": "DEFERRED"} if sqlite else {"isolation_level": "REPEATABLE READ"}
    with translate_db_errors(settings), engine(settings).connect() as connection:
        connection.execution_options(**options)
        connection.execute(sa.text("SELECT 1 FROM alembic_version"))  # SQLite's snapshot begins with the first read
        yield connection


@contextmanager
def connection(settings: Settings) -> Iterator[Connection]:
    """A connection in one transaction, committed at the end of the block; used to restore rows without classes."""
    with translate_db_errors(settings), engine(settings).begin() as connection:
        yield connection


def copy_file(settings: Settings, target: Path) -> None:
    """Copy a snapshot of SQLite's file with its backup API."""
    with driver(settings) as source, closing(sqlite3.connect(target)) as copy:
        source.backup(copy, pages=1000, sleep=0.01)


@contextmanager
def driver(settings: Settings) -> Iterator[Any]:
    """The driver's connection to SQLite outside of a transaction, for statements that cannot run inside one."""
    with translate_db_errors(settings), engine(settings).connect() as connection:
        try:
            yield connection.connection.driver_connection
        except sqlite3.Error as error:
            raise DatabaseError("", None, error) from error


def revision(settings: Settings) -> str:
    """The database's revision, "" without tables or file. Raises Unavailable if it is newer than this code."""
    url = database_url(settings)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        return ""
    with (
        translate_db_errors(settings),
        engine(settings).execution_options(sqlite_begin="DEFERRED").connect() as connection,
    ):
        current = revisions.current(connection)
        revisions.check(current, _redacted_url(settings))
        return current


def upgrade(settings: Settings, revision: str = "head") -> None:
    """Migrate the tables up to `revision`; creates the folder of SQLite's file. Safe to call from several processes.
    Raises Unavailable without changes if the database is newer than this code or damaged."""
    if (url := database_url(settings)).get_backend_name() == "sqlite":
        folder = Path(url.database or "").parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{folder} cannot be created ({error.strerror}); set SPECULOOS_HOME.") from None
    with _migrating, translate_db_errors(settings), engine(settings).connect() as connection:
        current = revisions.current(connection)
        revisions.check(current, _redacted_url(settings))
        if current == revisions.head():
            return
        connection.rollback()
        from alembic import command  # takes long: only for a database that changes

        command.upgrade(alembic_config(connection), revision)


def downgrade(settings: Settings, revision: str) -> None:
    """Migrate the tables down to `revision` (`base` removes all tables)."""
    from alembic import command

    with _migrating, translate_db_errors(settings), engine(settings).connect() as connection:
        command.downgrade(alembic_config(connection), revision)


def alembic_config(connection: Connection) -> "Config":
    """Alembic's config for the package's `migrations` folder, independent of the working directory."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).resolve().parent.parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def dispose() -> None:
    """Close all pooled connections and drop the engines (for tests, and before a fork)."""
    with _lock:
        for engine in _engines.values():
            engine.dispose()
        _engines.clear()
        _checked.clear()


@contextmanager
def _open(settings: Settings, bind: Engine) -> Iterator[Session]:
    with translate_db_errors(settings), Session(bind, expire_on_commit=False) as session:
        if settings.database_url not in _checked:  # once per process: never write to a newer database
            revisions.check(revisions.current(session.connection()), _redacted_url(settings))
            session.rollback()
            _checked.add(settings.database_url)
        yield session


@contextmanager
def translate_db_errors(settings: Settings) -> Iterator[None]:
    try:
        yield
    except NoSuchModuleError as error:
        raise BadInput(f"DATABASE_URL: {error}.") from None
    except DBAPIError as error:
        # SQLite reports a full disk for its file and its log, but only an I/O error for the index of the log, which the
        # first connection creates.
        io_error = "disk I/O error" in str(error.orig) and is_disk_full(settings.home)
        if is_full := io_error or disk_full(error):
            _shorten_log(settings)
        if message := _message(settings, error, is_full):
            raise Unavailable(message) from error
        raise


def _shorten_log(settings: Settings) -> None:
    """Checkpoint and truncate SQLite's log, and delete the reserve file (`speculoos.resources`). Most pages of the log
    exist in the database file already, so that the next row can be written although the disk is still full."""
    delete_reserve(settings.home)
    bind = engine(settings)
    if bind.dialect.name == "sqlite":
        with suppress(DBAPIError, sqlite3.Error), bind.connect() as connection:
            connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _redacted_url(settings: Settings) -> str:
    return database_url(settings).render_as_string(hide_password=True)


def _message(settings: Settings, error: DBAPIError, is_full: bool) -> str:
    where = _redacted_url(settings)
    reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if any(sign in reason for sign in DAMAGED):
        return (
            f"The database {where} is damaged ({reason}); stop the workbench, move the file aside, and put back the "
            f"newest copy of {settings.home / BACKUPS} or a backup (`speculoos restore`); docs/operations.md says how."
        )
    if "no such table" in reason or (isinstance(error, ProgrammingError) and "does not exist" in reason):
        return f"The database {where} is not migrated ({reason}); run `speculoos up`, which does it."
    if is_full:
        return f"The disk that holds the database {where} is full; free some space."
    if isinstance(error, OperationalError):
        advice = "check DATABASE_URL or SPECULOOS_HOME, the server, and that the disk can be written to"
        return f"The database {where} cannot be used now ({reason}); {advice}."
    return ""


def _make_engine(url: URL) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_MILLISECONDS / 1000})
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    return sa.create_engine(url, pool_pre_ping=True, pool_size=5, max_overflow=10, connect_args={"connect_timeout": 5})


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin or commit on its own; _sqlite_begin does
    for pragma in (
        "auto_vacuum=INCREMENTAL",  # only takes effect on a new, empty file
        *(f"busy_timeout={BUSY_MILLISECONDS}", "journal_mode=WAL", f"wal_autocheckpoint={WAL_PAGES}"),
        *("foreign_keys=ON", "synchronous=NORMAL"),
    ):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_begin(connection: Connection) -> None:
    """Writers lock at the start, because a transaction that reads and then writes cannot wait for another writer."""
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'IMMEDIATE')}")
