"""Other users of the machine cannot read the files of a home."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from speculoos.errors import Unavailable
from speculoos.files import new_folder
from speculoos.private import private_folder, restrict_permissions
from speculoos.settings import Settings
from tracking import db


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """The umask that most shells have."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_a_home_that_others_could_read_is_restricted(usual_umask: None, home: Settings, tmp_path: Path) -> None:
    outside = tmp_path / "their-model"
    outside.mkdir()
    (home.home / "logs").mkdir()
    (home.home / "logs" / "job.log").write_text("a prompt")
    (home.home / "logs" / "run.sh").write_text("")
    (home.home / "logs" / "run.sh").chmod(0o755)
    (home.home / "models").symlink_to(outside)
    assert mode(home.home) == 0o755, "what this test is about"
    restrict_permissions(home)
    assert (mode(home.home), mode(home.home / "logs"), mode(home.home / "logs" / "job.log")) == (0o700, 0o700, 0o600)
    assert mode(home.home / "logs" / "run.sh") == 0o700, "what may be run stays so"
    assert mode(home.home / "speculoos.db") == 0o600
    assert mode(outside) == 0o755, "what a link leads to is the user's own"


def test_a_database_file_elsewhere_is_restricted_too(usual_umask: None, home: Settings, tmp_path: Path) -> None:
    elsewhere = replace(home, database_url=f"sqlite:///{tmp_path}/elsewhere/x.db")
    db.upgrade(elsewhere)
    assert mode(tmp_path / "elsewhere" / "x.db") == 0o644
    restrict_permissions(elsewhere)
    assert mode(tmp_path / "elsewhere" / "x.db") == 0o600


@pytest.mark.integration
@pytest.mark.parametrize("module", ["cli.main", "ops.migrate", "workers.child.main"])
def test_processes_of_ours_make_files_for_their_owner_alone(home: Settings, tmp_path: Path, module: str) -> None:
    """Each is started by its own entry point, as in containers; what it does next does not matter here."""
    code = (
        f"import os, runpy, sys; os.umask(0o022); sys.argv = ['x', 'none', '1']\n"
        f"try: runpy.run_module('{module}', run_name='__main__')\n"
        f"except BaseException: pass\n"
        f"open({str(tmp_path / 'made')!r}, 'w')"
    )
    subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, check=True)
    assert mode(tmp_path / "made") == 0o600


def test_folders_that_are_built_aside_follow_the_umask(usual_umask: None, tmp_path: Path) -> None:
    """The starter model in an image is for every user of it; a model in a home is not."""
    for mask, folder_mode, file_mode in ((0o022, 0o755, 0o644), (0o077, 0o700, 0o600)):
        os.umask(mask)
        with new_folder(tmp_path / f"model-{mask}") as folder:
            (folder / "model.safetensors").write_bytes(b"")
        assert mode(tmp_path / f"model-{mask}") == folder_mode
        assert mode(tmp_path / f"model-{mask}" / "model.safetensors") == file_mode


def test_a_private_folder_must_be_our_own(usual_umask: None, tmp_path: Path) -> None:
    loose = tmp_path / "loose"
    loose.mkdir(mode=0o755)
    assert mode(private_folder(loose)) == 0o700
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(loose)
    for path in (tmp_path / "file", tmp_path / "link"):
        with pytest.raises(Unavailable, match="belongs to another user"):
            private_folder(path)


@pytest.mark.integration
@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a folder to someone else")
def test_a_run_folder_that_another_user_made_first_is_refused_by_up(home: Settings) -> None:
    home.run_dir.mkdir()
    os.chown(home.run_dir, 65534, 65534)
    process = subprocess.run([sys.executable, "-m", "cli.main", "up"], capture_output=True, text=True, timeout=240)
    assert process.returncode == 1
    assert f"{home.run_dir} belongs to another user" in process.stderr and "Traceback" not in process.stderr
