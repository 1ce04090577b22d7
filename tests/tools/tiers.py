"""pytest plugin of `make test-unit`: it fails tests that start a process without the marker `integration`.

An audit hook detects every process that a test starts, whichever library starts it.
"""

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest

EVENTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.system", "tests.zygote")
_started: list[str] = []


def pytest_configure() -> None:
    sys.addaudithook(_record)


def _record(event: str, arguments: tuple[object, ...]) -> None:
    if event in EVENTS and os.environ.get("PYTEST_CURRENT_TEST"):
        _started.append(f"{event} {str(arguments[:1])[:120]}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.when == "call" and report.passed and _started:
        report.outcome = "failed"
        report.longrepr = f"This test starts a process, so it needs the marker `integration`: {_started[0]}"
    if report.when == "teardown":
        _started.clear()
    return report
