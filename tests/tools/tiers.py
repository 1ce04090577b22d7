"""Find tests of `make test-unit` that start processes; they need the marker `integration`.

An audit hook sees every process that a test starts, whatever library starts it.
"""

import os
import sys

UNIT = os.environ.get("TIER") == "unit"
"""Set by `make test-unit`."""
EVENTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "tests.zygote")
_started: list[str] = []


def watch_processes() -> None:
    """Record every process start of this Python process. A hook cannot be removed, so call this once."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in EVENTS and os.environ.get("PYTEST_CURRENT_TEST"):
        _started.append(f"{event} {str(arguments[:1])[:120]}")


def take_started() -> list[str]:
    """Process starts since the last call."""
    started = list(_started)
    _started.clear()
    return started
