"""Jobs leave the CPU to the pages and the inference server."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys, time
from pathlib import Path
from speculoos.cpu_load import lower_session_priority
file = Path("/proc/self/autogroup")
def state():
    return file.read_text().strip() if file.exists() else ""
before, end = state(), time.monotonic() + float(sys.argv[1])
for device in ("none", "cuda", "cpu"):
    lower_session_priority(device)
    while device == "cpu" and before and state() == before and time.monotonic() < end:
        time.sleep(0.05)
        lower_session_priority(device)
    print(state())
"""
"""Tries for some seconds: the kernel refuses a change of a user's session within 100 ms of a change of any session."""


@pytest.mark.integration
@pytest.mark.parametrize("leads", [True, False])
def test_a_session_gets_a_lower_priority_from_its_leader_only(leads: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, "30" if leads else "0"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=leads, check=True)
    before, on_gpu, on_cpu = done.stdout.split("\n")[:3]
    # Without the file, or with an empty one, the kernel does not schedule this session as a group.
    if leads and before:
        assert before.endswith("nice 0")
        assert (on_gpu, on_cpu) == (before, before.replace("nice 0", "nice 5"))
    else:
        assert on_gpu == on_cpu == before
