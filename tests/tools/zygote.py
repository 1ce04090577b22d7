"""Processes of the project that begin in a moment: each is forked from one that has imported the libraries they need,
which takes seconds. A worker's children are forked the same way; they end with their worker as real ones do. Limited
children of forked processes are forked too. The processes of a test run, of all xdist workers, share one zygote.

Otherwise each is what `python -m MODULE` starts: a process of its own, killed and waited for by its pid. Only its first
environment, which others see in /proc, is not its own, so what is found by that is tested with real processes.
"""

import atexit
import contextlib
import ctypes
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
"""Of the project only what reads no environment when it is imported; it reads METHODS, see `Asked.begin`."""
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
    """A process, as subprocess.Popen has it."""

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
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forker:
    """The side that asks. Processes that are asked for one after the other are told of in this order."""

    def __init__(self, channel: socket.socket):
        self._channel = channel
        self._lock, self._begun, self._running = threading.Lock(), threading.Condition(), {}
        self._answers: list[int] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], out: int, leads: bool, *passed: int
    ) -> Forked:
        """`python -m module …` with both outputs in the file `out`; where it `leads`, in a session of its own. It has
        the files `passed` too, at most one."""
        asked = {"module": module, "arguments": list(arguments), "environment": dict(environment), "leads": leads}
        asked |= {"folder": os.getcwd(), "passed": passed}
        sys.audit("tests.zygote", module)
        with self._lock:
            socket.send_fds(self._channel, [json.dumps(asked).encode()], [out, *passed])
            with self._begun:
                assert self._begun.wait_for(lambda: self._answers, 60), "nothing is forked any more"
                return self._running[self._answers.pop()]

    def _listen(self) -> None:
        while said := self._channel.recv(4096):
            what, pid, status = json.loads(said)
            with self._begun:
                if what == "began":
                    self._running[pid] = Forked(pid)
                    self._answers.append(pid)
                    self._begun.notify()
                else:
                    self._running.pop(pid).end(status)


@functools.cache
def zygote() -> Forker:
    """The one of this test run, which has all libraries imported. It ends with the last process that asks."""
    address = f"\0{ADDRESS[0]}"
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while channel.connect_ex(address):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            try:
                listener.bind(address)
                listener.listen()
            except OSError:  # another process just did
                time.sleep(0.01)
                continue
            command = [sys.executable, "-m", "tests.tools.zygote", ADDRESS[0], str(listener.fileno())]
            subprocess.Popen(command, env=_environment(), cwd=CLONE, pass_fds=[listener.fileno()])
    return Forker(channel)


def begin(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None, out: int = 1
) -> Forked | Popen:
    """`python -m module …`: forked, unless its environment is one that only a new process can have. By default it is
    this process's."""
    environment = environment or _environment()
    if _fits(environment):
        return zygote().start(module, arguments, environment, out, leads=False)
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdout=out, stderr=out, env=environment)


def popen(command: Sequence[str], stdout: IO[bytes], env: dict[str, str], **more: Any) -> Forked | Popen:
    """As subprocess.Popen for `cli.launch.supervision`, which starts modules of the project and a broker."""
    if command[1] == "-m":
        return zygote().start(command[2], command[3:], env, stdout.fileno(), leads=True)
    return subprocess.Popen(command, stdout=stdout, env=env, **more)


def _environment() -> dict[str, str]:
    """That of this process, with one thread and the project's modules."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(CLONE)}


def _fits(environment: Mapping[str, str]) -> bool:
    """Whether a process of this environment would import the libraries as the zygote did."""
    mine = _environment()
    names = {name for name in (*mine, *environment) if name.startswith(OWN_ENVIRONMENT) and name not in READ_LATER}
    return all(mine.get(name) == environment.get(name) for name in names)


def _channel() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


@dataclass
class Asked:
    """What a process that was just forked becomes."""

    module: str
    arguments: list[str]
    environment: dict[str, str]
    leads: bool
    folder: str
    passed: Sequence[int]
    files: Sequence[int]

    def begin(self) -> None:
        """As a process of its own: session, files, environment."""
        if self.leads:
            os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        out, *others = self.files
        for number, file in enumerate((nothing, out, out)):
            os.dup2(file, number)
        kept = 2
        for number, file in zip(self.passed, others, strict=True):
            os.dup2(file, number)
            os.closerange(3, kept := number)
        os.closerange(kept + 1, 1024)
        os.chdir(self.folder)
        os.environ.clear()
        os.environ.update(self.environment)
        if os.environ.get(METHODS):
            for name in [name for name in sys.modules if name.partition(".")[0] in PROJECT]:
                del sys.modules[name]
        sys.stdout.reconfigure(line_buffering=True, write_through=True)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def run(self) -> None:
        """To the end of the process: what Python does then, without its unloading of every library."""
        status = 0
        try:
            if self.module == WORKER and not _fork_its_children():
                return
            from speculoos import limited

            os.execv = _go_on_as
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


def _go_on_as(_program: str, command: list[str]) -> None:
    """In place of os.execv of `python -m MODULE`: the libraries stay imported."""
    sys.argv[1:] = command[3:]
    runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    sys.exit()


def serve(*asking: socket.socket) -> Asked | None:
    """Fork what is asked for, and tell how it ended, until nobody asks any more. In a forked process, what it is."""
    sockets = {each.fileno(): each for each in asking}
    ends: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    for file in sockets:
        poll.register(file, select.POLLIN)
    while True:
        for file, _ in poll.poll():
            if file in ends:
                pid, channel = ends.pop(file)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                poll.unregister(file)
                os.close(file)
                with contextlib.suppress(OSError):  # nobody asks there any more
                    channel.send(json.dumps(["ended", pid, status]).encode())
                continue
            channel = sockets[file]
            if channel.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                accepted = channel.accept()[0]
                sockets[accepted.fileno()] = accepted
                poll.register(accepted, select.POLLIN)
                continue
            try:
                said, files, _, _ = socket.recv_fds(channel, 2**20, 2)
            except ConnectionResetError:  # it was killed
                said = b""
            if not said:
                poll.unregister(file)
                sockets.pop(file).close()
                if all(each in asking for each in sockets.values()):
                    return None
                continue
            asked = Asked(**json.loads(said), files=files)
            if not (pid := os.fork()):
                for each in sockets.values():
                    each.close()
                asked.begin()
                return asked
            for each in files:
                os.close(each)
            end = os.pidfd_open(pid)
            ends[end] = pid, channel
            poll.register(end, select.POLLIN)
            channel.send(json.dumps(["began", pid, 0]).encode())


def _limited(command: list[str], cwd: Path, env: dict[str, str], stdin: int, pass_fds: list[int]) -> Forked | Popen:
    """For `speculoos.limited` in a forked process: as subprocess.Popen."""
    if "serving.prompt_work" in command or not _fits(env):  # it refuses to run beside torch
        return subprocess.Popen(command, cwd=cwd, env=env, stdin=stdin, pass_fds=pass_fds)
    return zygote().start(command[2], command[3:], env, 2, False, *pass_fds)


def _fork_its_children() -> bool:
    """A process beside this worker forks its children, as this one is forked. False in such a child, at its end."""
    ours, theirs = _channel()
    worker = os.getpid()
    if not (pid := os.fork()):
        ours.close()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == worker and (asked := serve(theirs)):
            asked.run()
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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the tests, and their end this one
    warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
    os.environ.pop(METHODS, None)
    for name in IMPORTED:
        importlib.import_module(name)
    assert ENVIRONMENT_READ not in sys.modules
    gc.freeze()  # what is never looked at again stays shared
    ADDRESS[0] = sys.argv[1]
    if asked := serve(socket.socket(fileno=int(sys.argv[2]))):
        asked.run()


if __name__ == "__main__":
    main()
