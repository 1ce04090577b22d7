"""The lock on the services of a home: one holder at a time, and a killed holder leaves it free."""

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.launch.homelock import COMMAND, UP, HomeLock
from speculoos.errors import Unavailable
from speculoos.private import private_folder
from speculoos.settings import Settings, load


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "home"))
    loaded = load()
    yield loaded
    loaded.run_dir.unlink() if loaded.run_dir.is_symlink() else shutil.rmtree(loaded.run_dir, ignore_errors=True)


def holder_process(settings: Settings) -> subprocess.Popen[str]:
    code = (
        "from cli.launch.homelock import *; from speculoos.settings import load; import time\n"
        "lock = HomeLock(load()); print(lock.acquire(UP, ('broker',)), flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout and process.stdout.readline().strip() == "True"
    return process


@pytest.mark.integration
def test_a_second_holder_is_refused_and_can_read_who_the_first_is(settings: Settings) -> None:
    process = holder_process(settings)
    try:
        lock = HomeLock(settings)
        assert not lock.acquire(COMMAND, ())
        assert lock.holder() == {"pid": process.pid, "mode": UP, "programs": ["broker"]}
    finally:
        process.kill()
        process.wait()


@pytest.mark.integration
def test_a_killed_holder_leaves_the_lock_free(settings: Settings) -> None:
    process = holder_process(settings)
    process.send_signal(signal.SIGKILL)
    process.wait()
    lock = HomeLock(settings)
    assert lock.holder() == {}
    assert lock.acquire(UP, ())
    lock.release()
    assert HomeLock(settings).acquire(COMMAND, ())


def test_the_run_folder_is_private_and_short_enough_for_a_socket(settings: Settings) -> None:
    folder = private_folder(settings.run_dir)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert len(str(folder / "redis.sock").encode()) < 100, "longer paths fail as Unix sockets"


def test_the_run_folder_is_the_same_in_every_shell(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/somewhere/else")
    monkeypatch.setenv("TMPDIR", "/somewhere/else")
    assert load().run_dir == settings.run_dir


def test_a_run_folder_that_is_a_link_is_refused(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    settings.run_dir.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Unavailable, match="belongs to another user"):
        private_folder(settings.run_dir)
