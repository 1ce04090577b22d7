"""Jobs leave the CPU to the pages and the inference server."""

import subprocess
import sys
from pathlib import Path

import pytest

AUTOGROUP = Path("/proc/self/autogroup")
PROGRAM = """
from pathlib import Path
from speculoos.cpu_load import lower_session_priority
for device in ("cuda", "cpu"):
    lower_session_priority(device)
    print(Path("/proc/self/autogroup").read_text().split()[-1])
"""


@pytest.mark.integration
@pytest.mark.skipif(not AUTOGROUP.exists(), reason="this kernel does not schedule sessions as groups")
def test_a_session_that_computes_on_the_cpu_gets_a_lower_priority() -> None:
    before = AUTOGROUP.read_text()
    done = subprocess.run([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert done.stdout.split() == ["0", "5"] and AUTOGROUP.read_text() == before
