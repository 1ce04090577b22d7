"""Work in a limited child process: it ends at its time or memory limit or by a crash, and the next call works."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from speculoos.errors import BadInput
from speculoos.limited import ChildError, LimitedChild, LimitExceeded, run_limited
from speculoos.settings import PROJECT_ROOT
from tests.tools.processes import gone

pytestmark = pytest.mark.integration

MEMORY = 2**29
ENDLESS = ("re:match", "(a+)+$", "a" * 64 + "b")
"""One call of C code that holds the interpreter's lock and never looks at signals."""


@pytest.fixture(scope="module")
def child() -> Iterator[LimitedChild]:
    with LimitedChild(MEMORY, ("json", "re")) as limited_child:
        yield limited_child


def until(holds: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def test_a_result_comes_back(child: LimitedChild) -> None:
    assert child.call("operator:add", [1, "\ud800"], [None], seconds=20) == [1, "\ud800", None]


def test_state_is_kept_between_calls(child: LimitedChild) -> None:
    assert child.call("os:getpid", seconds=20) == child.call("os:getpid", seconds=20) != os.getpid()


def test_work_that_never_ends_is_ended_and_the_next_call_works_at_once(child: LimitedChild) -> None:
    before, server = (child.call(f"os:{name}", seconds=20) for name in ("getpid", "getppid"))
    with pytest.raises(LimitExceeded, match="longer than 0.5 s") as error:
        child.call(*ENDLESS, seconds=0.5)
    assert error.value.reason == "time"
    assert child.call("os:getpid", seconds=20) != before
    assert child.call("os:getppid", seconds=20) == server, "imports are not done again"
    assert not psutil.pid_exists(before)


def test_work_that_takes_memory_is_refused_it(child: LimitedChild) -> None:
    with pytest.raises(LimitExceeded, match="512 MB") as error:
        child.call("operator:mul", "a", 2**30, seconds=20)
    assert error.value.reason == "memory"


def test_a_crash_is_distinguished_from_an_exceeded_limit(child: LimitedChild) -> None:
    with pytest.raises(LimitExceeded) as error:
        child.call("os:abort", seconds=20)
    assert error.value.reason == "crash"
    with pytest.raises(LimitExceeded) as error:
        child.call("os:_exit", 3, seconds=20)
    assert error.value.reason == "crash"
    assert child.call("operator:neg", 1, seconds=20) == -1


def test_errors_come_back_as_what_they_are(child: LimitedChild) -> None:
    with pytest.raises(BadInput, match="no JSON") as error:
        child.call("tests.speculoos.limited_work:refuse", seconds=20)
    assert error.value.hint == "Write some."
    with pytest.raises(ChildError, match="division by zero") as child_error:
        child.call("operator:truediv", 1, 0, seconds=20)
    assert child_error.value.kind == "ZeroDivisionError"
    with pytest.raises(ChildError) as exit_error:
        child.call("sys:exit", 0, seconds=20)
    assert exit_error.value.kind == "SystemExit"
    with pytest.raises(ChildError, match="JSON serializable"):
        child.call("builtins:object", seconds=20)


def test_what_the_work_prints_is_not_taken_for_an_answer(child: LimitedChild) -> None:
    assert child.call("builtins:print", '{"id": 1, "result": 1}', seconds=20) is None


def test_a_child_that_was_killed_is_replaced(child: LimitedChild) -> None:
    copy = psutil.Process(child.call("os:getpid", seconds=20))
    copy.parent().kill()
    copy.kill()
    until(lambda: gone(copy.pid))
    until(lambda: child._process.poll() is not None)
    assert child.call("operator:neg", 1, seconds=20) == -1


def test_a_copy_killed_between_two_calls_is_replaced_unseen(child: LimitedChild) -> None:
    before = child.call("os:getpid", seconds=20)
    os.kill(before, signal.SIGKILL)
    assert child.call("os:getpid", seconds=20) != before


def test_secrets_are_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECULOOS_INFERENCE_TOKEN", "hush")
    monkeypatch.setenv("SPECULOOS_STORE", "sftp://me:hush@box/files")
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hush@x/y")
    monkeypatch.setenv("SPECULOOS_HOME", "/home")
    environment = run_limited("tests.speculoos.limited_work:environment", seconds=20, memory=MEMORY)
    assert "hush" not in str(environment) and environment["SPECULOOS_HOME"] == "/home"


def test_closing_ends_work_in_progress() -> None:
    with LimitedChild(MEMORY) as child:
        copy = child.call("os:getpid", seconds=20)
    until(lambda: not psutil.pid_exists(copy))


@pytest.mark.parametrize("busy", [False, True])
def test_nothing_is_left_when_the_calling_program_is_killed(busy: bool) -> None:
    work = f"child.call(*{ENDLESS!r}, seconds=5)" if busy else "time.sleep(60)"  # busy work ends at its limit
    code = (
        "import time\nfrom speculoos.limited import LimitedChild\n"
        f"child = LimitedChild({MEMORY})\nprint(child.call('os:getpid', seconds=20), flush=True)\n{work}"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    copy = psutil.Process(int(process.stdout.readline()))
    pids = [copy.pid, copy.ppid()]
    if busy:
        until(lambda: copy.cpu_times().user > 0.2)
    process.kill()
    process.wait()
    until(lambda: all(map(gone, pids)))
