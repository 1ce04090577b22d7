"""Run untrusted work in a child process with limits: C or Rust code cannot be interrupted in a thread, but a process
can be killed.

`LimitedChild` keeps a process that has done its imports and forks a copy of itself for the work. A kernel timer ends a
copy that takes too long, a resource limit one that uses too much memory; the next call gets a new copy at once.
Arguments and results are JSON, so nothing a child sends can execute in the parent.
"""

import ctypes
import gc
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
from contextlib import AbstractContextManager, suppress
from typing import Any

from speculoos import errors
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.settings import PROJECT_ROOT

START_SECONDS = 120.0  # timeout for starting Python and importing, before any untrusted work
GRACE_SECONDS = 5.0
"""Time beyond a call's timeout, in case a busy machine is late to end the copy, before the whole child is killed."""
PR_SET_PDEATHSIG = 1
SECRETS = ("TOKEN", "KEY", "PASSWORD", "SECRET", "DATABASE_URL", "REDIS_URL", "SPECULOOS_STORE")
"""Children do not inherit environment variables whose names contain one of these words."""


class LimitExceeded(SpeculoosError):
    """Work in a child was terminated: `reason` is time, memory or crash."""

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


class ChildError(SpeculoosError):
    """Work in a child raised an exception that is not a SpeculoosError; `kind` is its class name."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


def run_limited(function: str, *arguments: Any, seconds: float, memory: int) -> Any:
    """Call `function` ("package.module:name") once in a new child. Arguments and result are JSON values.

    `seconds`: timeout of the call, without the import of its module (START_SECONDS). `memory`: limit in bytes for the
    whole child. Raises LimitExceeded, the SpeculoosError that the function raised, or ChildError.
    """
    with LimitedChild(memory, (function.partition(":")[0],)) as child:
        return child.call(function, *arguments, seconds=seconds)


class LimitedChild(AbstractContextManager["LimitedChild"]):
    """A long-lived child that runs one call at a time; thread-safe. Started by `start` or the first call."""

    def __init__(self, memory: int, imports: Sequence[str] = ()):
        """`memory`: limit in bytes of a copy's data, libraries included. `imports`: modules to import at start."""
        self.memory, self.imports = memory, tuple(imports)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._lines: Any = None
        self._calls = 0

    def __exit__(self, *_: Any) -> None:
        self.close()

    def start(self) -> None:
        """Start the child now rather than at the first call. Raises Unavailable."""
        with self._lock:
            self._ensure()

    def call(self, function: str, *arguments: Any, seconds: float) -> Any:
        """As `run_limited`. Module state of `function` persists between calls until a copy is terminated."""
        with self._lock:
            self._ensure()
            self._calls += 1
            request = {"id": self._calls, "function": function, "arguments": arguments, "seconds": seconds}
            return _result(self._exchange(request, seconds + GRACE_SECONDS), seconds, self.memory)

    def close(self) -> None:
        """Kill the child and any call in progress. A later call starts a new child."""
        if (process := self._process) is not None and process.poll() is None:
            _kill_group(process.pid)
        with self._lock:
            self._end()

    def _ensure(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return
        self._end()
        self._socket, child_end = socket.socketpair()
        command = [sys.executable, "-m", __name__, str(child_end.fileno()), str(self.memory), *self.imports]
        with child_end:
            self._process = subprocess.Popen(
                command, cwd=PROJECT_ROOT, env=_environment(), stdin=subprocess.DEVNULL, pass_fds=[child_end.fileno()]
            )
        self._lines = self._socket.makefile("rb")
        if "ready" not in self._exchange({}, START_SECONDS):
            self._end()
            raise Unavailable("A helper process could not be started; see the log of this program for the reason.")

    def _exchange(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        """Send a request (an empty dict sends nothing) and wait for its response; without one the child is killed."""
        assert self._socket is not None
        try:
            self._socket.settimeout(timeout)
            if request:
                self._socket.sendall(json.dumps(request).encode() + b"\n")
            while line := self._lines.readline():
                response = json.loads(line)
                if response.get("id") == request.get("id"):
                    return response
        except TimeoutError:
            self._end()
            return {"signal": signal.SIGALRM}
        except (OSError, ValueError):
            pass
        self._end()
        return {}

    def _end(self) -> None:
        for stream in (self._lines, self._socket):
            if stream is not None:
                stream.close()
        self._lines = self._socket = None
        if self._process is not None:
            _kill_group(self._process.pid)
            self._process.wait()
            self._process = None


def die_with_parent() -> None:
    """Make Linux kill this process when the thread that started it ends."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill_group(pid: int) -> None:
    """The child leads a process group with its copy (see `main`), unless it is killed before creating the group."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _environment() -> dict[str, str]:
    """This process' environment without secrets; libraries are offline and single-threaded."""
    fixed = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    return {**environment_without_secrets(), **fixed}


def environment_without_secrets() -> dict[str, str]:
    """This process' environment without the variables of SECRETS."""
    return {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in SECRETS)}


def _result(response: dict[str, Any], seconds: float, memory: int) -> Any:
    if "result" in response:
        return response["result"]
    if "type" in response:
        error = getattr(errors, response["type"], None)
        if isinstance(error, type) and issubclass(error, SpeculoosError):
            raise error(response["message"], response["hint"])
        if response["type"] != "MemoryError":
            raise ChildError(response["type"], response["message"])
        raise LimitExceeded("memory", f"The work needed more than {memory / 2**20:.0f} MB of memory.")
    if response.get("signal") == signal.SIGALRM:
        raise LimitExceeded("time", f"The work took longer than {seconds:g} s and was ended.")
    raise LimitExceeded("crash", "The process of the work ended: it crashed, or memory ran out.")


def main(arguments: Sequence[str]) -> int:
    """Entry point of the child: import, then keep one forked copy running until the parent closes its end."""
    channel, memory = socket.socket(fileno=int(arguments[0])), int(arguments[1])
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    os.dup2(2, 1)  # stdout of libraries goes to the log
    gc.disable()  # saves a tenth of the time of imports
    for name in arguments[2:]:
        importlib.import_module(name)
    gc.freeze()  # copies need not scan what was imported
    gc.enable()
    channel.sendall(b'{"ready": true}\n')
    outstanding = memoryview(mmap.mmap(-1, 8)).cast("q")  # id of the current call, shared with the copy
    while True:
        if not (copy := os.fork()):
            _work(channel, memory, outstanding)
            os._exit(0)  # the parent closed its end
        status = os.waitpid(copy, 0)[1]
        if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
            return 0
        if call := outstanding[0]:
            number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
            with suppress(OSError):  # the next copy sees that the parent closed its end
                channel.sendall(json.dumps({"id": call, "signal": number}).encode() + b"\n")


def _work(channel: socket.socket, memory: int, outstanding: memoryview) -> None:
    """Main loop of the copy: run calls until the parent closes its end."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    lines = channel.makefile("rb")
    outstanding[0] = 0
    while line := lines.readline():
        request = json.loads(line)
        outstanding[0] = request["id"]
        signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # unhandled: the kernel kills this process
        response = _call(request["function"], request["arguments"])
        signal.setitimer(signal.ITIMER_REAL, 0)
        channel.sendall(json.dumps({"id": request["id"], **response}).encode() + b"\n")
        outstanding[0] = 0


def _call(function: str, arguments: list[Any]) -> dict[str, Any]:
    """The result or the error as a JSON object; a Rust panic is a BaseException."""
    try:
        result = pkgutil.resolve_name(function)(*arguments)
        json.dumps(result)
        return {"result": result}
    except BaseException as error:
        text = str(error) or type(error).__name__
        return {"type": type(error).__name__, "message": text[:2000], "hint": getattr(error, "hint", "")}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
