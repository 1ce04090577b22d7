"""Engines and sessions: SQLite (WAL, foreign keys, BEGIN IMMEDIATE for writes) or PostgreSQL, and migrations.

`session` is for anything that writes: one short transaction, committed on leaving, rolled back on an error.
`reading` is for queries: it never waits for a writer on SQLite and never commits.
"""

import os
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

from speculoos.errors import BadInput, SpeculoosError, Unavailable
from speculoos.faults import disk_full
from speculoos.room import full, give_reserve_up
from speculoos.settings import Settings
from tracking import revisions
from tracking.places import tell_home

if TYPE_CHECKING:
    from alembic.config import Config

BACKUPS = "backups"
"""Folder of the home with the copies that are made before a migration."""
DAMAGED = (
    *("malformed", "not a database", "decode to UTF-8"),
    *("database corruption", "invalid page in block", "could not read block"),
)
"""What SQLite and PostgreSQL say about a file that is not what they wrote."""
BUSY_MILLISECONDS = 10_000
"""How long a writer waits for another one before it gives up."""
WAL_PAGES = 250
"""Pages (of 4 kB) of SQLite's write-ahead log that are put back into the file at the next commit. The default of 1,000
lets rows written every second take 4 MB, which is what a nearly full disk does not have."""

_engines: dict[tuple[str, Path], Engine] = {}
_known: set[str] = set()
"""URLs of databases that this code was seen to know."""
_lock = threading.Lock()
_migrating = threading.Lock()  # Alembic keeps its context in module globals


def engine(settings: Settings) -> Engine:
    """The process-wide engine of this database for this home (made once; connects on first use)."""
    with _lock:
        key = settings.database_url, settings.home
        if key not in _engines:
            _engines[key] = _make_engine(database_url(settings))
            tell_home(_engines[key], settings.home)
        return _engines[key]


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
def writing(settings: Settings) -> Iterator[Session]:
    """A session that may write: committed at the end of the block, rolled back when it raises.

    Objects stay readable after the block. Raises Unavailable when the database cannot be reached or has no tables.
    """
    with _open(settings, engine(settings)) as session:
        yield session
        session.commit()


@contextmanager
def reading(settings: Settings) -> Iterator[Session]:
    """A session for queries only; whatever it changes is thrown away."""
    with _open(settings, engine(settings).execution_options(sqlite_begin="DEFERRED")) as session:
        yield session


@contextmanager
def snapshot(settings: Settings) -> Iterator[Connection]:
    """A connection for queries that sees the database as it is now, whatever is written while the block lasts."""
    sqlite = engine(settings).dialect.name == "sqlite"
    options = {"sqlite_begin": "DEFERRED"} if sqlite else {"isolation_level": "REPEATABLE READ"}
    with _translated(settings), engine(settings).connect() as connection:
        connection.execution_options(**options)
        connection.execute(sa.text("SELECT 1 FROM alembic_version"))  # SQLite's snapshot begins with the first read
        yield connection


@contextmanager
def connection(settings: Settings) -> Iterator[Connection]:
    """A connection in one transaction, committed at the end of the block (rows without classes: restoring)."""
    with _translated(settings), engine(settings).begin() as connection:
        yield connection


def copy_file(settings: Settings, target: Path) -> None:
    """A copy of SQLite's file by its backup API, as of one moment, whatever is written meanwhile."""
    with driver(settings) as own, closing(sqlite3.connect(target)) as copy:
        own.backup(copy, pages=1000, sleep=0.01)


@contextmanager
def driver(settings: Settings) -> Iterator[Any]:
    """The driver's own connection to SQLite, outside of a transaction: for what cannot be said inside one."""
    with _translated(settings), engine(settings).connect() as connection:
        try:
            yield connection.connection.driver_connection
        except sqlite3.Error as error:
            raise DatabaseError("", None, error) from error


def revision(settings: Settings) -> str:
    """The revision of the tables, "" for a database without any, or without a file (none is made). Raises Unavailable
    for one newer than this code."""
    url = database_url(settings)
    if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
        return ""
    with _translated(settings), engine(settings).execution_options(sqlite_begin="DEFERRED").connect() as connection:
        current = revisions.current(connection)
        revisions.check(current, _where(settings))
        return current


def upgrade(settings: Settings, revision: str = "head") -> None:
    """Bring the tables to `revision`, making the SQLite file's folder first. Safe to call from several processes.

    Raises Unavailable, changing nothing, for a database that is newer than this code or damaged.
    """
    from alembic import command

    _make_folder(database_url(settings))
    with _migrating, _translated(settings), engine(settings).connect() as connection:
        revisions.check(revisions.current(connection), _where(settings))
        connection.rollback()
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
        for engine in _engines.values():
            engine.dispose()
        _engines.clear()
        _known.clear()


@contextmanager
def _open(settings: Settings, bind: Engine) -> Iterator[Session]:
    with _translated(settings), Session(bind, expire_on_commit=False) as session:
        if settings.database_url not in _known:  # once a process: a newer database is not written to by chance
            revisions.check(revisions.current(session.connection()), _where(settings))
            session.rollback()
            _known.add(settings.database_url)
        yield session


@contextmanager
def _translated(settings: Settings) -> Iterator[None]:
    try:
        yield
    except SpeculoosError:
        raise
    except NoSuchModuleError as error:
        raise BadInput(f"DATABASE_URL: {error}.") from None
    except DBAPIError as error:
        if no_room := _no_room(settings, error):
            _shorten_log(settings)
        if sentence := _sentence(settings, error, no_room):
            raise Unavailable(sentence) from error
        raise


def _no_room(settings: Settings, error: DBAPIError) -> bool:
    """Whether the disk is full. SQLite says so of its file and its log; of the index of its log, which every first
    connection makes, it says only that it could not be written."""
    return disk_full(error) or ("disk I/O error" in str(error.orig) and full(settings.home))


def _shorten_log(settings: Settings) -> None:
    """Put SQLite's log back into the file and cut it to nothing: most often its pages have a place there already, so
    that the next row can be written although the disk is still full. The reserve is given up for it too."""
    give_reserve_up(settings.home)
    bind = engine(settings)
    if bind.dialect.name == "sqlite":
        with suppress(DBAPIError, sqlite3.Error), bind.connect() as connection:
            connection.connection.driver_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _where(settings: Settings) -> str:
    return database_url(settings).render_as_string(hide_password=True)


def _sentence(settings: Settings, error: DBAPIError, no_room: bool) -> str:
    where = _where(settings)
    reason = str(error.orig).strip().splitlines()[0] if str(error.orig).strip() else type(error.orig).__name__
    if any(sign in reason for sign in DAMAGED):
        return (
            f"The database {where} is damaged ({reason}); stop the workbench, move the file aside, and put back the "
            f"newest copy of {settings.home / BACKUPS} or a backup (`speculoos restore`); docs/operations.md says how."
        )
    if "no such table" in reason or (isinstance(error, ProgrammingError) and "does not exist" in reason):
        return f"The database {where} is not migrated ({reason}); run `speculoos up`, which does it."
    if no_room:
        return f"The disk that holds the database {where} is full; make room there."
    if isinstance(error, OperationalError) and _read_only(settings):
        return (
            f"The folder of the database {where} cannot be written to ({reason}); make it writable, or set "
            "SPECULOOS_HOME to a copy of the home elsewhere."
        )
    if isinstance(error, OperationalError):
        return f"The database {where} cannot be used now ({reason}); check DATABASE_URL, the server and the disk."
    return ""


def _read_only(settings: Settings) -> bool:
    """Whether SQLite's file lies where nothing can be written, which SQLite needs for reading too."""
    url = database_url(settings)
    folder = Path(url.database or "").parent
    return url.get_backend_name() == "sqlite" and folder.is_dir() and not os.access(folder, os.W_OK)


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
        engine = sa.create_engine(url, connect_args={"timeout": BUSY_MILLISECONDS / 1000})
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    return sa.create_engine(url, pool_pre_ping=True, pool_size=5, max_overflow=10, connect_args={"connect_timeout": 5})


def _sqlite_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver must not begin or commit on its own; _sqlite_begin does
    for pragma in (
        "auto_vacuum=INCREMENTAL",  # counts for a new file only, and only before anything is written to it
        *(f"busy_timeout={BUSY_MILLISECONDS}", "journal_mode=WAL", f"wal_autocheckpoint={WAL_PAGES}"),
        *("foreign_keys=ON", "synchronous=NORMAL"),
    ):
        connection.execute(f"PRAGMA {pragma}")


def _sqlite_begin(connection: Connection) -> None:
    """A transaction that reads and then writes cannot wait for another writer, so writers lock at the beginning."""
    connection.exec_driver_sql(f"BEGIN {connection.get_execution_options().get('sqlite_begin', 'IMMEDIATE')}")
