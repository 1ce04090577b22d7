"""Processes that tests start: such a test needs the marker `integration`, `browser` or `drill`, as others must be fast.

An audit hook sees every process that a test starts, whatever library starts it.
"""

import os
import sys

SLOW_TIERS = ("integration", "browser", "drill")
_started: list[str] = []


def watch_processes() -> None:
    """Record every process start of this Python process. A hook cannot be removed, so call this once."""
    sys.addaudithook(_note)


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system"):
        _started.append(f"{event} {str(arguments[:1])[:120]}" if os.environ.get("PYTEST_CURRENT_TEST") else "")


def take_started() -> list[str]:
    """Process starts since the last call."""
    started = [line for line in _started if line]
    _started.clear()
    return started
