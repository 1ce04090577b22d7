"""Starts the project's processes quickly: forks them from a zygote that has imported the slow libraries.

A worker's children are forked the same way and end with their worker, as real ones do. Limited children of forked
processes are forked too. All xdist workers of a test run share one zygote.

Otherwise a forked process is like `python -m MODULE`: a separate process, killed and waited for by its pid. Only its
initial environment, as others see it in /proc, is the zygote's; tests that depend on it start real processes.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

CLONE = Path(__file__).resolve().parents[2]
WORKER, CHILD = "workers.supervise.worker", "workers.child.main"
IMPORTED = (
    *("torch", "safetensors.torch", "accelerate", "transformers", "transformers.generation"),
    *("transformers.models.auto.modeling_auto", "transformers.models.auto.tokenization_auto"),
    *("transformers.models.llama.modeling_llama", "celery.app.amqp", "celery.apps.worker", "celery.concurrency.thread"),
    *("celery.worker.components", "celery.fixups.django", "kombu.transport.redis", "redis", "sqlalchemy.orm"),
    *("sqlalchemy.dialects.sqlite", "alembic.config", "pydantic", "psutil", "httpx", "typer", "rich.progress"),
    *("prometheus_client", "fastapi", "app", "jinja2", "openai", "orjson"),
    *("uvicorn.protocols.http.auto", "uvicorn.lifespan.on", "tracking.db", "tracking.jobs", "tracking.reports"),
    *("tracking.listing", "tracking.processes", "tracking.runs", "workers.child.context", "workers.jobs.requests"),
    *("workers.identity", "workers.memory", "workers.child.work.import_prompts", "workers.child.work.models"),
    *("workers.child.work.train", "workers.child.work.prove", "evaluation.acceptance", "formats.store"),
    *("ops.retention", "ops.storage", "speculoos.webhook", "serving.engine", "serving.live", "serving.watch"),
    *("serving.token", "models.runtime.speed", "speculoos.connections", "speculoos.guard"),
)
"""Of the project only what reads no environment when it is imported; it reads METHODS, see `ForkRequest.begin`."""
PROJECT = {path.parent.name for path in CLONE.glob("*/__init__.py")} - {"tests"}
METHODS = "SPECULOOS_METHODS"
ENVIRONMENT_READ = "workers.celery_app"
"""A module that reads the settings when it is imported."""
OWN_ENVIRONMENT = ("HF_", "TRANSFORMERS_", "OMP_", "PYTHON", "LD_", "TORCH_", "ACCELERATE_", "TOKENIZERS_")
"""Variables that these libraries read when they are imported, or Python when it begins."""
READ_LATER = ("PYTHONUNBUFFERED", "HF_TOKEN")
"""Those of them that make no difference to what was imported."""
PR_SET_PDEATHSIG = 1
ADDRESS = [f"speculoos-tests-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"]
"""Where the zygote of this test run listens; in forked processes too."""


Popen = subprocess.Popen[bytes]


class Forked:
    """A forked process with the interface of subprocess.Popen."""

    def __init__(self, pid: int):
        self.pid, self.returncode, self._ended = pid, None, threading.Event()

    def end(self, status: int) -> None:
        self.returncode = status
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, but its end is not reported yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The client of a zygote. Starts are confirmed in the order in which they were requested."""

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._lock, self._started, self._running = threading.Lock(), threading.Condition(), {}
        self._new: list[Forked] = []
        self._ended = False
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], out: int, leads: bool, *passed: int
    ) -> Forked:
        """Start `python -m module …` with stdout and stderr in the file `out`; with `leads`, in a new session. It
        also inherits the files `passed`, at most one."""
        request = {"module": module, "arguments": list(arguments), "environment": dict(environment), "leads": leads}
        request |= {"folder": os.getcwd(), "passed": passed}
        sys.audit("tests.zygote", module)
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [out, *passed])
            with self._started:
                self._started.wait_for(lambda: self._new or self._ended)
                assert self._new, "the zygote has ended"
                return self._new.pop()

    def _listen(self) -> None:
        with contextlib.suppress(ConnectionResetError):
            while message := self._channel.recv(4096):
                self._report(*json.loads(message))
        with self._started:
            self._ended = True
            self._started.notify()

    def _report(self, event: str, pid: int, status: int) -> None:
        with self._started:
            if event == "began":
                self._running[pid] = Forked(pid)
                self._new.append(self._running[pid])
                self._started.notify()
            else:
                self._running.pop(pid).end(status)


@functools.cache
def zygote() -> Forker:
    """The zygote of this test run, started if needed. It ends with its last client."""
    address = f"\0{ADDRESS[0]}"
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while channel.connect_ex(address):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
                listener.listen()
            except OSError:  # another process just did it
                time.sleep(0.01)
                continue
            command = [sys.executable, "-m", "tests.tools.zygote", ADDRESS[0], str(listener.fileno())]
            subprocess.Popen(command, env=_environment(), cwd=CLONE, pass_fds=[listener.fileno()])
    return Forker(channel)


def begin(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None, out: int = 1
) -> Forked | Popen:
    """Start `python -m module …`: forked, unless `environment` needs a new process. By default it is the environment of
    this process."""
    environment = environment or _environment()
    if _matches_zygote(environment):
        return zygote().start(module, arguments, environment, out, leads=False)
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdout=out, stderr=out, env=environment)


def popen(command: Sequence[str], stdout: IO[bytes], env: dict[str, str], **options: Any) -> Forked | Popen:
    """Replaces subprocess.Popen in `cli.launch.supervision`, which starts modules of the project and a broker."""
    if command[1] == "-m":
        return zygote().start(command[2], command[3:], env, stdout.fileno(), leads=True)
    return subprocess.Popen(command, stdout=stdout, env=env, **options)


def _environment() -> dict[str, str]:
    """The environment of this process, with one thread and the project on PYTHONPATH."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CLONE)}


def _matches_zygote(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment would import the libraries as the zygote did."""
    current = _environment()
    names = {name for name in (*current, *environment) if name.startswith(OWN_ENVIRONMENT) and name not in READ_LATER}
    return all(current.get(name) == environment.get(name) for name in names)


def _channel() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@dataclass
class ForkRequest:
    """A request to the zygote: the module that a forked process runs, and how."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    leads: bool
    folder: str
    passed: Sequence[int]
    files: Sequence[int]

    def begin(self) -> None:
        """Set up the forked process: session, files, folder, environment."""
        if self.leads:
            os.setsid()
        null = os.open(os.devnull, os.O_RDONLY)
        out, *others = self.files
        for number, file in enumerate((null, out, out)):
            os.dup2(file, number)
        last = 2
        for number, file in zip(self.passed, others, strict=True):
            os.dup2(file, number)
            os.closerange(3, last := number)
        os.closerange(last + 1, 1024)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        if os.environ.get(METHODS):
            for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
                del sys.modules[name]
        sys.stdout.reconfigure(line_buffering=True, write_through=True)
        faulthandler.enable()  # a crash in native code prints where it happened
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(self) -> None:
        """Run the module and exit as Python does, but without unloading every library."""
        status = 0
        try:
            if self.module == WORKER and not _serve_worker_children():
                return
            from speculoos import limited

            os.execv = _exec_module
            limited.subprocess = SimpleNamespace(Popen=_limited, DEVNULL=subprocess.DEVNULL)
            sys.argv[1:] = self.arguments
            runpy.run_module(self.module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            status = 1
        finally:
            threading._shutdown()
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(status)


def _exec_module(_program: str, command: list[str]) -> None:
    """Replaces os.execv of `python -m MODULE`, so that the libraries stay imported."""
    sys.argv[1:] = command[3:]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    sys.exit()


def serve(*initial: socket.socket) -> ForkRequest | None:
    """Fork requested processes and report their ends until no client is left. A forked process returns its request."""
    sockets = {sock.fileno(): sock for sock in initial}
    running: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    for file in sockets:
        poll.register(file, select.POLLIN)
    while True:
        for file, _ in poll.poll():
            if file in running:
                pid, channel = running.pop(file)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                poll.unregister(file)
                os.close(file)
                with contextlib.suppress(OSError):  # the client is gone
                    channel.send(json.dumps(["ended", pid, status]).encode())
                continue
            channel = sockets[file]
            if channel.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                accepted = channel.accept()[0]
                sockets[accepted.fileno()] = accepted
                poll.register(accepted, select.POLLIN)
                continue
            try:
                message, files, _, _ = socket.recv_fds(channel, 2**20, 2)
            except ConnectionResetError:  # the client was killed
                message = b""
            if not message:
                poll.unregister(file)
                sockets.pop(file).close()
                if all(sock in initial for sock in sockets.values()):
                    return None
                continue
            request = ForkRequest(**json.loads(message), files=files)
            if not (pid := os.fork()):
                for sock in sockets.values():
                    sock.close()
                request.begin()
                return request
            for inherited in files:
                os.close(inherited)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, channel
            poll.register(pidfd, select.POLLIN)
            channel.send(json.dumps(["began", pid, 0]).encode())


def _limited(command: list[str], cwd: Path, env: dict[str, str], stdin: int, pass_fds: list[int]) -> Forked | Popen:
    """Replaces subprocess.Popen in `speculoos.limited` of a forked process."""
    if "serving.prompt_work" in command or not _matches_zygote(env):  # prompt_work refuses to run beside torch
        return subprocess.Popen(command, cwd=cwd, env=env, stdin=stdin, pass_fds=pass_fds)
    return zygote().start(command[2], command[3:], env, 2, False, *pass_fds)


def _serve_worker_children() -> bool:
    """Start a process that forks this worker's children. Returns True here, and False there and in the children."""
    ours, theirs = _channel()
    worker = os.getpid()
    if not (pid := os.fork()):
        ours.close()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == worker and (request := serve(theirs)):
            request.run()
        return False
    theirs.close()
    from workers.child.context import SUPERVISOR_PID
    from workers.supervise import attempt

    forker = Forker(ours)

    def popen(command: list[str], stdin: int, stdout: Any, stderr: Any, env: dict[str, str], **more: bool) -> Forked:
        assert command[:3] == [sys.executable, "-m", CHILD] and stdout is stderr and more == {"start_new_session": True}
        return forker.start(CHILD, command[3:], {**env, SUPERVISOR_PID: str(pid)}, stdout.fileno(), leads=True)

    attempt.subprocess = SimpleNamespace(
        Popen=popen, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
    )
    return True


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and the zygote ends with them
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    os.environ.pop(METHODS, None)
    for name in IMPORTED:
        importlib.import_module(name)
    assert ENVIRONMENT_READ not in sys.modules
    gc.freeze()  # objects that are not touched again stay shared
    ADDRESS[0] = sys.argv[1]
    if request := serve(socket.socket(fileno=int(sys.argv[2]))):
        request.run()


if __name__ == "__main__":
    main()
