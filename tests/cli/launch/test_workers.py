"""Workers alone: a missing requirement is one sentence, and one command keeps several workers running."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli.launch import workers
from speculoos.errors import BadInput, Unavailable
from speculoos.settings import Settings
from tests.tools.processes import gone
from tests.workers.conftest import Broker, wait_until
from tracking import db, processes
from tracking.tables import Base

pytestmark = pytest.mark.integration


@pytest.fixture
def redis_url() -> Iterator[str]:
    broker = Broker()
    yield broker.url
    broker.end()


@pytest.mark.sqlite
def test_a_setup_that_cannot_be_shared_is_refused(home: Settings, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="REDIS_URL is not set, and no `speculoos up` runs") as error:
        workers.check_worker_setup(home)
    assert "redis://host" in error.value.hint
    empty = replace(home, redis_url="redis://127.0.0.1:9/0", database_url=f"sqlite:///{tmp_path}/none.db")
    with pytest.raises(BadInput, match="there is no database in") as error:
        workers.check_worker_setup(empty)
    assert "SQLite cannot be shared between machines" in error.value.hint and not (tmp_path / "none.db").exists()
    with pytest.raises(BadInput, match="REDIS_URL names another machine, but the database is a file of this one"):
        workers.check_worker_setup(replace(home, redis_url="redis://pages.lan:6379/0"))
    with pytest.raises(Unavailable, match="The broker does not respond"):
        workers.check_worker_setup(replace(home, redis_url="redis://127.0.0.1:9/0"))


def test_tables_of_another_version_are_left_alone(home: Settings, redis_url: str, postgres: str) -> None:
    settings = replace(home, redis_url=redis_url, database_url=postgres)
    db.upgrade(settings)
    with db.reading(settings) as session:
        before = session.query(Base).count()  # other tests share the database and may have added bases
    workers.check_worker_setup(settings)
    with db.reading(settings) as session:
        assert session.query(Base).count() == before, "no machine but that of the pages notes its starter"
    db.downgrade(settings, "0004")
    try:
        with pytest.raises(Unavailable, match="at migration 0004, these workers need"):
            workers.check_worker_setup(settings)
        assert db.revision(settings) == "0004"
    finally:
        db.upgrade(settings)
        db.dispose()


def test_one_command_keeps_several_workers(home: Settings, redis_url: str) -> None:
    environment = {**os.environ, "SPECULOOS_HOME": str(home.home), "REDIS_URL": f"{redis_url}?virtual_host=11"}
    environment |= {"DATABASE_URL": home.database_url, "SPECULOOS_STARTER": str(home.home / "none")}
    arguments = ["worker", "--queue", "io", "--count", "2", "--device", "cpu,cuda:7"]
    command = subprocess.Popen([sys.executable, "-m", "cli.main", *arguments], env=environment)
    try:
        wait_until(lambda: len(pids(home)) == 2, 180, "two workers")
        first, second = sorted(pids(home))
        assert {device(first), device(second)} == {"cpu", "cuda:7"}
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(pids(home) - {first, second}) == 1, 180, "another worker in its place")
        left = pids(home)
    finally:
        command.terminate()
        command.wait(60)
    assert command.returncode == 0 and all(gone(pid) for pid in left)


def pids(home: Settings) -> set[int]:
    with db.reading(home) as session:
        return {int(row.key.rpartition(":")[2]) for row in processes.alive(session, "worker-io")}


def device(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(
        variable.decode().partition("=")[2] for variable in variables if variable.startswith(b"SPECULOOS_DEVICE=")
    )
