"""Fixture `database`: settings of a fresh migrated database, once on SQLite and once on a throw-away PostgreSQL."""

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


def postgres_binaries() -> Path | None:
    """Folder of `postgres` and `initdb`, if this machine has them."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True)
    if found := shutil.which("postgres"):
        folders.append(Path(found).resolve().parent)
    return next((f for f in folders if (f / "postgres").exists() and (f / "initdb").exists()), None)


def _as_postgres(command: list[str]) -> list[str]:
    """The server refuses to run as root; Debian's package brings a user for it."""
    if os.getuid() != 0:
        return command
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", *command]


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """URL of a server on a private Unix socket, gone after the tests. Skips with the reason where there is none."""
    binaries = postgres_binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server binaries here; on Debian: apt-get install postgresql")
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if os.getuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
    data = folder / "data"
    initdb = [str(binaries / "initdb"), "-D", str(data), "-A", "trust", "-U", "tester", "--no-sync"]
    made = subprocess.run(_as_postgres(initdb), capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"initdb does not run here: {made.stderr.strip().splitlines()[-1]}")
    flags = ["-k", str(folder), "-c", "listen_addresses=", "-c", "fsync=off", "-c", "max_connections=200"]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            _as_postgres([str(binaries / "postgres"), "-D", str(data), *flags]), stdout=log, stderr=log
        )
    try:
        yield from _serve(folder)
    finally:
        db.dispose()
        server.send_signal(signal.SIGQUIT)  # at once; the data is thrown away
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def _serve(folder: Path) -> Iterator[str]:
    url = f"postgresql+psycopg://tester@/{{name}}?host={folder}"
    admin = sa.create_engine(url.format(name="postgres"), isolation_level="AUTOCOMMIT")
    for _ in range(100):
        try:
            admin.connect().close()
            break
        except sa.exc.OperationalError:
            time.sleep(0.1)
    with admin.connect() as connection:
        connection.execute(sa.text("CREATE DATABASE speculoos"))
    admin.dispose()
    yield url.format(name="speculoos")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings of an empty migrated database; the environment names it too."""
    if request.param == "sqlite":
        yield home
        return
    url = request.getfixturevalue("postgres")
    monkeypatch.setenv("DATABASE_URL", url)
    settings = replace(home, database_url=url)
    db.upgrade(settings)
    with db.session(settings) as session:
        session.execute(sa.text(f"TRUNCATE {', '.join(Table.metadata.tables)} CASCADE"))
    yield settings
    db.dispose()
