"""Jobs leave the CPU to the pages and the inference server."""

import subprocess
import sys

import pytest

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
