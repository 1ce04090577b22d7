"""Announcements of running servers."""

import subprocess
import sys
from pathlib import Path

import pytest

from speculoos import running_servers

HOLD = """
import sys, time
from pathlib import Path
from speculoos.running_servers import announce
with announce(Path(sys.argv[1]), "one", {"job": "1"}):
    print("announced", flush=True)
    time.sleep(600)
"""


def test_a_server_is_announced_until_the_block_ends(tmp_path: Path) -> None:
    assert running_servers.running(tmp_path) == {}
    with pytest.raises(RuntimeError), running_servers.announce(tmp_path, "one", {"job": "1"}):
        assert running_servers.running(tmp_path) == {"one": {"job": "1"}}
        raise RuntimeError
    assert running_servers.running(tmp_path) == {}


def test_a_killed_server_is_not_running(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout.readline()
    assert [*running_servers.running(tmp_path)] == ["one"]
    process.kill()
    process.wait()
    assert (tmp_path / "servers" / "one.json").exists()
    assert running_servers.running(tmp_path) == {}


def test_a_damaged_file_is_not_a_server(tmp_path: Path) -> None:
    (tmp_path / "servers").mkdir()
    (tmp_path / "servers" / "one.json").write_text("{")
    assert running_servers.running(tmp_path) == {}
