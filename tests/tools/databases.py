"""Databases for tests: fixture `database` is a new migrated one, on SQLite and on a temporary PostgreSQL.

With DATABASES=all (`make test-databases`) every database test runs on both, and a missing server is an error.
"""

import atexit
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from speculoos.settings import Settings
from tracking import db
from tracking.tables import Table

ALL = os.environ.get("DATABASES", "") == "all"
SQLITE, POSTGRESQL = "sqlite", "postgresql"
HELP = "no PostgreSQL server binaries here; on Debian: apt-get install postgresql"
TEMPLATE = "migrated"
START_SECONDS = 120.0


def postgres_binaries() -> Path | None:
    """The folder with `postgres` and `initdb`, or None."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True)
    if executable := shutil.which("postgres"):
        folders.append(Path(executable).resolve().parent)
    return next((f for f in folders if (f / "postgres").exists() and (f / "initdb").exists()), None)


class Missing(Exception):
    """No server can be started here; the message gives the reason and what to install."""


class Postgres:
    """A server on a private Unix socket, which can be killed and restarted. With `host` it also listens there and
    trusts the addresses of that /24 network; `run` is a prefix of its command (`ip netns exec …`)."""

    def __init__(self, host: str = "", run: tuple[str, ...] = ()) -> None:
        self._host, self._run = host, run
        binaries = postgres_binaries()
        if binaries is None:
            raise Missing(HELP)
        self._binaries = binaries
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        if os.getuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        self._created = 0
        self._init()
        self.start()

    def url(self, name: str) -> str:
        """The URL of database `name` on this server."""
        return f"postgresql+psycopg://tester@/{name}?host={self.folder}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        flags = [
            "-k",
            str(self.folder),
            "-c",
            f"listen_addresses={self._host}",
            "-c",
            "fsync=off",
            "-c",
            "max_connections=200",
        ]
        command = [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), *flags]
        with (self.folder / "server.log").open("a") as log:
            self._server = subprocess.Popen([*self._run, *_as_postgres(command)], stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline or self._server.poll() is not None:
                raise Missing(f"PostgreSQL does not start: {(self.folder / 'server.log').read_text()[-500:]}")
            time.sleep(0.1)

    def stop(self, signal_number: signal.Signals = signal.SIGQUIT) -> None:
        """Stop the server: at once without cleanup (QUIT), or after it closed its connections (INT)."""
        self._server.send_signal(signal_number)
        self._server.wait(30)

    def new(self, template: str = "template1") -> str:
        """The URL of a new database, copied from `template`."""
        self._created += 1
        name = f"made{self._created}"
        self.run(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def run(self, statement: str) -> None:
        """Execute a statement outside any transaction."""
        admin = sa.create_engine(self.url("postgres"), isolation_level="AUTOCOMMIT")
        try:
            with admin.connect() as connection:
                connection.execute(sa.text(statement))
        finally:
            admin.dispose()

    def end(self) -> None:
        """Stop the server and delete its data."""
        db.dispose()
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _init(self) -> None:
        data = str(self.folder / "data")
        command = [str(self._binaries / "initdb"), "-D", data, "-A", "trust", "-U", "tester", "--no-sync"]
        result = subprocess.run(_as_postgres(command), capture_output=True, text=True)
        if result.returncode:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise Missing(f"initdb does not run here: {result.stderr.strip().splitlines()[-1]}")
        if self._host:
            with (self.folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {self._host}/24 trust\n")

    def _answers(self) -> bool:
        try:
            self.run("SELECT 1")
        except sa.exc.OperationalError:
            return False
        return True


def _as_postgres(command: list[str]) -> list[str]:
    """Run a command as user postgres if this is root: the server refuses to run as root."""
    if os.getuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """A server for the session. Skips with the reason if there is none; with DATABASES=all, fails."""
    try:
        server = Postgres()
    except Missing as reason:
        pytest.fail(str(reason)) if ALL else pytest.skip(str(reason))
    yield server
    server.end()


@pytest.fixture(scope="session")
def postgres(postgres_server: Postgres) -> str:
    """URL of a database shared by the tests."""
    return postgres_server.new()


def migrate(settings: Settings) -> None:
    """Create the tables of a home. SQLite's file is migrated once and then copied, since migrations take longer than
    most tests and have their own tests."""
    url = db.database_url(settings)
    if url.get_backend_name() != SQLITE or Path(url.database).exists():
        db.upgrade(settings)
        return
    settings.home.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(_migrated(), url.database)


@functools.cache
def _migrated() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="migrated-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = folder / "speculoos.db"
    db.upgrade(Settings(home=folder, database_url=f"sqlite:///{file}", redis_url=""))
    db.dispose()  # merges the write-ahead log into the file
    return file


class Databases:
    """Creates databases of one kind, SQLite or PostgreSQL."""

    def __init__(self, server: Postgres | None):
        self._server, self._has_template = server, False

    def url(self) -> str:
        """DATABASE_URL of a new migrated database; "" means SQLite in the home, the default."""
        if self._server is None:
            return ""
        if not self._has_template:
            self._server.run(f"CREATE DATABASE {TEMPLATE}")
            settings = Settings(home=self._server.folder, database_url=self._server.url(TEMPLATE), redis_url="")
            db.upgrade(settings)
            db.dispose()  # a template can only be copied without open connections
            self._has_template = True
        return self._server.new(TEMPLATE)

    def migrate(self, settings: Settings) -> None:
        """Create the tables of a new home, unless `url` returned a migrated database."""
        if self._server is None:
            migrate(settings)

    def drop(self, url: str) -> None:
        """Drop a database; each takes some MB."""
        if self._server is not None and url:
            db.dispose()
            self._server.run(f"DROP DATABASE {sa.make_url(url).database} WITH (FORCE)")


@pytest.fixture(scope="session")
def databases(request: pytest.FixtureRequest) -> Databases:
    """SQLite; with DATABASES=all, each database test runs on SQLite and on PostgreSQL."""
    kind = getattr(request, "param", SQLITE)
    server = request.getfixturevalue("postgres_server") if kind == POSTGRESQL else None
    return Databases(server)


@pytest.fixture(params=[None] if ALL else [SQLITE, pytest.param(POSTGRESQL, marks=pytest.mark.integration)])
def database(request: pytest.FixtureRequest, home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of an empty migrated database; DATABASE_URL is set too."""
    if request.param != POSTGRESQL:
        yield home
        return
    url = request.getfixturevalue("postgres")
    monkeypatch.setenv("DATABASE_URL", url)
    settings = replace(home, database_url=url)
    db.upgrade(settings)
    with db.writing(settings) as session:
        session.execute(sa.text(f"TRUNCATE {', '.join(Table.metadata.tables)} CASCADE"))
    yield settings
    db.dispose()
