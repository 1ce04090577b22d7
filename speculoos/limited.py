"""Foreign work in a child process with limits: a call of C or Rust code cannot be interrupted in a thread, but a
process can be ended.

`LimitedChild` keeps a process that has its imports done and forks a copy of itself for the work. A copy that takes too
long is ended by the kernel's own timer, one that takes too much memory by its limit; the next call finds a fresh copy
at once. Arguments and results travel as JSON, so nothing a child sends can run here. Imports no room.
"""

import importlib
import json
import mmap
import os
import pkgutil
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from speculoos import errors
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.settings import CLONE

START_SECONDS = 120.0
"""For starting Python and importing; nothing foreign runs then."""
GRACE_SECONDS = 5.0
"""What a copy has beyond its time, on a machine too busy to end it in time, before its whole child is killed."""
SECRETS = ("TOKEN", "KEY", "PASSWORD", "SECRET", "DATABASE_URL", "REDIS_URL", "SPECULOOS_STORE")
"""Environment variables with these words in their names are kept from children."""


class Overrun(SpeculoosError):
    """Work in a child was ended: `reason` is time, memory or crash."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


class ChildError(SpeculoosError):
    """Work in a child raised something that is no SpeculoosError; `kind` is the name of its class."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


def run_limited(function: str, *arguments: Any, seconds: float, memory: int) -> Any:
    """Call `function` ("package.module:name") once, in a child of its own. Arguments and result are JSON values.

    `seconds` for the call (START_SECONDS for the imports of its module are apart), `memory` bytes for the child in
    all. Raises Overrun, the SpeculoosError that the function raised, or ChildError.
    """
    with LimitedChild(memory, (function.partition(":")[0],)) as child:
        return child.call(function, *arguments, seconds=seconds)


class LimitedChild:
    """A long-lived child for calls one at a time; any thread may call. Started by `start` or the first call."""

    def __init__(self, memory: int, imports: Sequence[str] = ()):
        """`memory` bytes that a copy may write to, libraries' own included. `imports`: modules loaded beforehand."""
        self.memory, self.imports = memory, tuple(imports)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lines: Any = None
        self._calls = 0

    def __enter__(self) -> "LimitedChild":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def start(self) -> None:
        """Import now rather than at the first call. Raises Unavailable."""
        with self._lock:
            self._ensure()

    def call(self, function: str, *arguments: Any, seconds: float) -> Any:
        """As `run_limited`. What `function` keeps in its module is there at the next call, unless it was ended."""
        with self._lock:
            self._ensure()
            self._calls += 1
            request = {"id": self._calls, "function": function, "arguments": arguments, "seconds": seconds}
            return _result(self._exchange(request, seconds + GRACE_SECONDS), seconds, self.memory)

    def close(self) -> None:
        """End the child, and with it a call in progress. A later call starts another."""
        if (process := self._process) is not None and process.poll() is None:
            _kill_group(process.pid)
        with self._lock:
            self._end()

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        self._socket, theirs = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), str(self.memory), *self.imports]
        with theirs:
            self._process = subprocess.Popen(
                command, cwd=CLONE, env=_environment(), stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._lines = self._socket.makefile("rb")
        if "ready" not in self._exchange({}, START_SECONDS):
            self._end()
            raise Unavailable("A helper process could not be started; the log of this program says why.")

    def _exchange(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send (an empty dict: nothing) and wait for the answer to it; without one the child is ended."""
        assert self._socket is not None
        try:
            self._socket.settimeout(timeout)
            if request:
                self._socket.sendall(json.dumps(request).encode() + b"\n")
            while line := self._lines.readline():
                answer = json.loads(line)
                if answer.get("id") == request.get("id"):
                    return answer
        except TimeoutError:
            self._end()
            return {"signal": signal.SIGALRM}
        except (OSError, ValueError):
            pass
        self._end()
        return {}

    def _end(self) -> None:
        for end in (self._lines, self._socket):
            if end is not None:
                end.close()
        self._lines = self._socket = None
        if self._process is not None:
            _kill_group(self._process.pid)
            self._process.wait()
            self._process = None


def _kill_group(pid: int) -> None:
    """The child is in a process group of its own together with its copy (`main`), unless it had no time for that."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """Ours without secrets; libraries stay off the network and single-threaded."""
    inherited = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in SECRETS)}
    quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    return {**inherited, **quiet}


def _result(answer: dict[str, Any], seconds: float, memory: int) -> Any:
    if "result" in answer:
        return answer["result"]
    if "type" in answer:
        kind = getattr(errors, answer["type"], None)
        if isinstance(kind, type) and issubclass(kind, SpeculoosError):
            raise kind(answer["message"], answer["hint"])
        if answer["type"] != "MemoryError":
            raise ChildError(answer["type"], answer["message"])
        raise Overrun("memory", f"The work needed more than {memory / 2**20:.0f} MB of memory.")
    if answer.get("signal") == signal.SIGALRM:
        raise Overrun("time", f"The work took longer than {seconds:g} s and was ended.")
    raise Overrun("crash", "The work ended its process: it crashed, or there was no memory for it.")


def main(arguments: Sequence[str]) -> int:
    """The child: import, then keep one copy of this process at work until the other end closes."""
    channel, memory = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program that asks
    os.dup2(2, 1)  # what libraries print goes to the log
    for name in arguments[2:]:
        importlib.import_module(name)
    channel.sendall(b'{"ready": true}\n')
    outstanding = memoryview(mmap.mmap(-1, 8)).cast("q")  # of one number: the call a copy works at, seen by both
    while True:
        if not (copy := os.fork()):
            _work(channel, memory, outstanding)
            os._exit(0)  # the other end closed
        status = os.waitpid(copy, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return 0
        if call := outstanding[0]:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            with suppress(OSError):  # the next copy sees that the other end closed
                channel.sendall(json.dumps({"id": call, "signal": number}).encode() + b"\n")


def _work(channel: socket.socket, memory: int, outstanding: memoryview) -> None:
    """The copy: answer calls until the other end closes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    lines = channel.makefile("rb")
    outstanding[0] = 0
    while line := lines.readline():
        request = json.loads(line)
        outstanding[0] = request["id"]
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # unhandled SIGALRM: the kernel ends us, come what may
        answer = _attempt(request["function"], request["arguments"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        channel.sendall(json.dumps({"id": request["id"], **answer}).encode() + b"\n")
        outstanding[0] = 0


def _attempt(function: str, arguments: list[Any]) -> dict[str, Any]:
    """The result or the error, as JSON; a panic of Rust code is a BaseException."""
    try:
        result = pkgutil.resolve_name(function)(*arguments)
        json.dumps(result)
        return {"result": result}
    except BaseException as error:
        text = str(error) or type(error).__name__
        return {"type": type(error).__name__, "message": text[:2000], "hint": getattr(error, "hint", "")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
