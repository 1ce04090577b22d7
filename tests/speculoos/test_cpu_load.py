"""Jobs leave the CPU to the pages and the inference server."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
"""Missing on kernels that do not schedule sessions as groups: then nothing happens, and "none" is printed."""
PROGRAM = """
from pathlib import Path
from speculoos.cpu_load import lower_session_priority
file = Path("/proc/self/autogroup")
for device in ("cuda", "cpu"):
    lower_session_priority(device)
    print(file.read_text().split()[-1] if file.exists() else "none")
"""


@pytest.mark.integration
@pytest.mark.parametrize("leads", [True, False])
def test_a_session_gets_a_lower_priority_from_its_leader_only(leads: bool) -> None:
    own = AUTOGROUP.read_text().split()[-1] if AUTOGROUP.exists() else "none"
    expected = [own, own] if own == "none" or not leads else ["0", "5"]
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, start_new_session=leads, check=True)
    assert done.stdout.split() == expected
