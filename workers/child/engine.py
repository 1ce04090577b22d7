"""The process of an inference server of another project: its environment, output, readiness and end."""

import collections
import ctypes
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from formats.engines import LaunchOptions, ServerEngine
from speculoos.errors import JobFailed, OutOfMemory, Unavailable, Unsupported
from speculoos.limited import PR_SET_PDEATHSIG, environment_without_secrets
from speculoos.private import private_folder
from speculoos.redaction import redact
from speculoos.settings import Settings

LINES, SHOWN_LINES, LONGEST_LINE = 400, 3, 300
"""Lines of output that are kept, and that an error shows."""
START_SECONDS = 900.0
"""Maximum time until a server is ready: compiling and CUDA graphs take minutes."""
POLL_SECONDS, REQUEST_SECONDS = 0.3, 10.0
END_SECONDS = 5.0
VERSION_SECONDS = 60.0
PR_SET_CHILD_SUBREAPER = 36
VERSION = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(importlib.metadata.version(name))
        break
    except importlib.metadata.PackageNotFoundError:
        pass
"""
ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception)\b: .+|error[:\]] .+|failed to .+)")
NOT_CAUSES = ("Engine core initialization failed", "WorkerProc initialization failed", "warning is normal", "ulimit")
"""Errors that only report that another process failed, or that are none."""
NO_MEMORY = re.compile(r"out of memory|bad_alloc|[Cc]annot allocate|No available memory|failed to allocate", re.I)
PORT_TAKEN = re.compile(r"[Aa]ddress already in use|couldn't bind|failed to bind")


class PortTaken(Exception):
    """Another program took the port before the server."""


class EngineProcess:
    """A server that listens on a port of the loopback interface. It ends with the process that starts it; the caller
    must be the main thread, because Linux ties it to that thread."""

    def __init__(
        self,
        engine: ServerEngine,
        version: str,
        launch: LaunchOptions,
        command: Sequence[str],
        arguments: Sequence[str] = (),
        gpus: Sequence[str] = (),
    ):
        """`arguments` follow those of the engine; `gpus`: UUIDs of the GPUs that it may use."""
        self.engine, self.version, self.launch = engine, version, launch
        self.root = f"http://127.0.0.1:{launch.port}"
        self._lines: collections.deque[str] = collections.deque(maxlen=LINES)
        become_subreaper()
        self._others = set(psutil.Process().children(recursive=True))  # which `end` leaves alone
        prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None  # found before the fork
        self.process = subprocess.Popen(
            [*command, *engine.arguments(launch), *arguments],
            cwd=launch.folder,
            env=_environment(engine, launch, gpus),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=(lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL)) if prctl else None,
        )
        self._reader = threading.Thread(target=self._read, name="engine-output", daemon=True)
        self._reader.start()

    def wait_ready(self, check_stop: Callable[[], None], seconds: float = START_SECONDS) -> None:
        """Wait until it answers. Raises PortTaken, JobFailed with the end of its log, OutOfMemory, or Cancelled."""
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            check_stop()
            if self.process.poll() is not None:
                raise self.error(f"ended with status {self.process.returncode} before it was ready")
            if time.monotonic() > deadline:
                self.end()
                raise self.error(f"was not ready after {seconds:.0f} s")
            time.sleep(POLL_SECONDS)

    def is_healthy(self) -> bool:
        """Whether it answers a request with its key."""
        try:
            with httpx.Client(timeout=REQUEST_SECONDS, trust_env=False, headers=self._headers()) as client:
                return all(client.get(self.root + path).status_code == 200 for path in ("/health", "/v1/models"))
        except httpx.HTTPError:
            return False

    def error(self, what: str, was_ready: bool = False) -> Exception:
        """The error for its end, with the remedy and an error of its output: the first one while it starts, as later
        ones follow from it, else the last one."""
        self._reader.join(END_SECONDS)
        lines = [line for line in self._lines if line.strip()]
        text, name = "\n".join(lines), f"{self.engine.title} {self.version}".strip()
        if PORT_TAKEN.search(text) and not was_ready:
            return PortTaken(name)
        found = [
            match[1]
            for line in lines
            if (match := ERROR.search(line)) and not any(harmless in line for harmless in NOT_CAUSES)
        ]
        cause = found[-1 if was_ready else 0] if found else " / ".join(line.strip() for line in lines[-SHOWN_LINES:])
        message = f"{name} {what}" + (f": {cause[:LONGEST_LINE].rstrip('.')}." if cause else ".")
        if NO_MEMORY.search(text):
            return OutOfMemory(message, "Use a shorter context, another precision or a smaller base model.")
        return JobFailed("server_failed", message, self._remedy())

    def end(self) -> None:
        """End it and all processes that it started."""
        for send in (psutil.Process.terminate, psutil.Process.kill):
            processes = [each for each in psutil.Process().children(recursive=True) if each not in self._others]
            for process in processes:
                try:
                    send(process)
                except psutil.Error:
                    continue
            if not psutil.wait_procs(processes, END_SECONDS)[1]:
                break
        self.process.wait()

    def last_lines(self) -> list[str]:
        """The last lines of its output, secrets masked."""
        return [line.strip()[:LONGEST_LINE] for line in self._lines if line.strip()][-SHOWN_LINES:]

    def _remedy(self) -> str:
        if self.launch.draft:
            return "See the log; a start without the draft shows whether the base model works."
        return f"See the log; {self.engine.title} may not support this base model or this precision."

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.launch.key}"}

    def _read(self) -> None:
        """Write its output to the job's log, with the key masked."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            line = redact(line, [self.launch.key])
            self._lines.append(line)
            with suppress(OSError, ValueError):  # a full disk or closed output must not block the server
                sys.stdout.write(line)
                sys.stdout.flush()


def engine_version(engine: ServerEngine, python: str, command: Sequence[str]) -> str:
    """Version of the engine. Raises Unsupported if it is not in its environment or cannot be run."""
    if not python:
        return _output([*command, "--version"], engine).strip().splitlines()[0][:80] if command else ""
    if not (version := _output([python, "-c", VERSION, *engine.package], engine).strip()):
        raise Unsupported(
            f"{python} has no package {' or '.join(engine.package)}, which contains {engine.title}.",
            f"Install it there, or name another environment in settings.toml: [servers.{engine.name}] python = …",
        )
    return version


@contextmanager
def reserved_port(settings: Settings) -> Iterator[int]:
    """A port of the settings' range that no program uses, and that no other server of this user gets until the block
    ends: vLLM shares its port with any program that asks for it, and binds it only after its imports. Raises
    Unavailable."""
    first, last = settings.server_ports
    folder = private_folder(Path(f"/tmp/speculoos-{os.getuid()}-ports"))
    for port in range(first, last + 1):
        is_free = False
        with (folder / str(port)).open("w") as lock:
            with suppress(OSError), socket.socket() as probe:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                probe.bind(("127.0.0.1", port))
                is_free = True
            if is_free:
                yield port
                return
    raise Unavailable(f"All ports from {first} to {last} are in use.", "Set SPECULOOS_SERVER_PORTS to another range.")


def become_subreaper() -> None:
    """Make processes whose parent ends children of this one, so that `EngineProcess.end` finds them."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _environment(engine: ServerEngine, launch: LaunchOptions, gpus: Sequence[str]) -> dict[str, str]:
    """The environment of this process without secrets and Python's settings; libraries are offline."""
    inherited = environment_without_secrets()
    for name in ("PYTHONPATH", "PYTHONHOME", "OMP_NUM_THREADS"):
        inherited.pop(name, None)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return {**inherited, **offline, **visible, **engine.environment(launch)}


def _output(command: Sequence[str], engine: ServerEngine) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=VERSION_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", "") or str(error)
        raise Unsupported(
            f"{engine.title} cannot be started: {command[0]}: {reason}.",
            f"Correct [servers.{engine.name}] in settings.toml.",
        ) from None
    return done.stdout or done.stderr


def python_command(engine: ServerEngine, python: str, command: Sequence[str]) -> list[str]:
    """The command that starts the engine, without its arguments."""
    return list(command) or [python, *engine.program]


def server_folder(home: Path, job_id: str) -> Path:
    """Private files of a server: its draft, the base model as a file."""
    return home / "servers" / job_id
