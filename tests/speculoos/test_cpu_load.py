"""Jobs leave the CPU to the pages and the inference server."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from speculoos import cpu_load

PROGRAM = """
from pathlib import Path
from speculoos.cpu_load import lower_session_priority
file = Path("/proc/self/autogroup")
for device in ("none", "cuda", "cpu"):
    lower_session_priority(device)
    print(file.read_text().strip() if file.exists() else "")
"""


@pytest.mark.integration
@pytest.mark.parametrize("leads", [True, False])
def test_a_session_gets_a_lower_priority_from_its_leader_only(leads: bool) -> None:
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=leads, check=True)
    before, on_gpu, on_cpu = done.stdout.split("\n")[:3]
    # Without the file, or with an empty one, the kernel does not schedule this session as a group.
    if leads and before:
        assert before.endswith("nice 0")
        assert (on_gpu, on_cpu) == (before, before.replace("nice 0", "nice 5"))
    else:
        assert on_gpu == on_cpu == before


@pytest.mark.parametrize(("refused", "tries"), [(2, 3), (100, cpu_load.TRIES)])
def test_a_refused_change_of_a_session_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, refused: int, tries: int
) -> None:
    """The kernel refuses users other than root within 100 ms of the change of any session."""
    written = []

    def write(text: str) -> None:
        written.append(text)
        if len(written) <= refused:
            raise BlockingIOError

    monkeypatch.setattr(cpu_load, "Path", lambda path: SimpleNamespace(write_text=write))
    monkeypatch.setattr(cpu_load.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(cpu_load.os, "getsid", lambda pid: os.getpid())
    cpu_load.lower_session_priority("cpu")
    assert written == [str(cpu_load.NICE)] * tries
