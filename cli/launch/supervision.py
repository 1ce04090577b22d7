"""Run programs under supervisord: configuration, start, ordered stop, and cleanup after a killed supervisor.

`python -m cli.launch.supervision CONFIG PARENT` is the supervisor process; it ends with its parent.
"""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import xmlrpc.client
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import psutil

from cli.launch.programs import Program
from speculoos.errors import BadInput, Unavailable
from speculoos.private import set_private_umask
from speculoos.resources import update_reserve
from speculoos.settings import PROJECT_ROOT, Settings

HOME_VARIABLE = "SPECULOOS_SUPERVISED"
"""Environment variable with the home folder in all supervised processes, to find those left running."""
STOP_SECONDS = 15.0
MAX_RESTARTS, STEADY_SECONDS = 3, 60
STOP_TIMES = {"SPECULOOS_STOP_SECONDS": "5", "SPECULOOS_KILL_SECONDS": "1"}
"""Timeouts of a stopping worker for its child; they leave time to mark the job."""
PR_SET_PDEATHSIG = 1


def supervisor_config(settings: Settings, programs: list[Program]) -> str:
    """The text of supervisord's configuration file."""
    run, logs = settings.run_dir, settings.home / "logs"
    lines = [
        "[supervisord]",
        *("nodaemon=true", "silent=true", f"pidfile={_escape(run / 'supervisord.pid')}"),
        *(f"logfile={_escape(logs / 'supervisord.log')}", "logfile_maxbytes=5MB", "logfile_backups=2"),
        *(f"directory={_escape(PROJECT_ROOT)}", "identifier=speculoos", *(["user=root"] if os.geteuid() == 0 else [])),
        *("[unix_http_server]", f"file={_escape(run / 'supervisor.sock')}", "chmod=0700"),
        "[rpcinterface:supervisor]",
        "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface",
    ]
    for group in dict.fromkeys(p.group for p in programs):
        members = [p for p in programs if p.group == group]
        names = ",".join(p.name for p in members)
        lines += [f"[group:{group}]", f"programs={names}", f"priority={members[0].rank}"]
    for program in programs:
        lines += [f"[program:{program.name}]", *_program_lines(program, logs)]
    return "\n".join(lines) + "\n"


def _program_lines(program: Program, logs: Path) -> list[str]:
    return [
        f"command={_escape(shlex.join(program.command))}",
        *([f"environment={program.environment}"] if program.environment else []),
        *("autorestart=true", "startsecs=1", "startretries=3", "redirect_stderr=true"),
        f"stdout_logfile={_escape(_escape(logs / (program.name + '.log')))}",  # supervisord expands this one twice
        "stdout_logfile_maxbytes=10MB",
        *("stdout_logfile_backups=3", f"stopwaitsecs={program.stop_seconds}", "stopsignal=TERM", "killasgroup=true"),
    ]


def _escape(value: object) -> str:
    text = str(value)
    if any(bad in text for bad in ("\n", " ;", " #", "\t")):
        raise BadInput(f"{text!r}: a path with a line break, ' ;' or ' #' cannot be supervised; move SPECULOOS_HOME.")
    return text.replace("%", "%%")


class ProcessSupervisor:
    """A supervisord with its programs; the caller holds the lock of the home."""

    def __init__(self, settings: Settings, programs: list[Program]):
        self.settings = settings
        self.programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: dict[str, set[int]] = {}  # many for a program that keeps dying

    def start(self) -> None:
        """Write the configuration and start supervisord. Raises Unavailable when writing fails."""
        home, run = self.settings.home, self.settings.run_dir
        update_reserve(self.settings)
        for folder in (home / "logs", home / "broker"):
            folder.mkdir(parents=True, exist_ok=True)
        config = run / "supervisord.conf"
        text = supervisor_config(self.settings, self.programs)
        try:
            config.write_text(text)
        except OSError as error:
            raise Unavailable(f"{config} cannot be written ({error.strerror}); free disk space there.") from None
        with _output(home / "logs" / "supervisord.out") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli.launch.supervision", str(config), str(os.getpid())],
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=PROJECT_ROOT,
                env={**STOP_TIMES, **os.environ, "SPECULOOS_HOME": str(home), HOME_VARIABLE: str(home)},
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the programs in order
            )

    @property
    def log_hint(self) -> str:
        return f"The logs are in {self.settings.home / 'logs'}."

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self, names: Iterable[str]) -> None:
        """Raise Unavailable, with the last log line, when one of `names` failed to start or keeps dying early."""
        if not self.alive:
            reason = last_log_line(self.settings, "supervisord") or "its log is empty"
            raise Unavailable(f"The supervisor ended: {reason}", self.log_hint)
        for name, state in program_states(self.settings).items():
            pids = self._pids.setdefault(name, set())
            if state["pid"] and state["now"] - state["start"] > STEADY_SECONDS:
                pids.clear()
            pids.update({state["pid"]} - {0})
            if name in names and (state["statename"] == "FATAL" or len(pids) > MAX_RESTARTS):
                reason = last_log_line(self.settings, name) or state["spawnerr"]
                raise Unavailable(f"{name} does not start: {reason}", self.log_hint)

    def revive(self) -> None:
        """Restart the programs in state FATAL."""
        for name, state in program_states(self.settings).items():
            if state["statename"] == "FATAL":
                with contextlib.suppress(OSError, xmlrpc.client.Error), _rpc(self.settings) as proxy:
                    proxy.supervisor.startProcess(f"{state['group']}:{name}", False)

    def stop(self) -> None:
        """Stop the programs in order, then supervisord; kill remaining processes after 15 s."""
        if self.alive and self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS - 1)
        end_leftover_processes(self.settings, patience=1)
        if self._process:
            self._process.wait()
            self._process = None


def _output(path: Path) -> IO[bytes]:
    """Output file of supervisord; /dev/null when the disk is full."""
    try:
        return open(path, "wb")
    except OSError:
        return open(os.devnull, "wb")


def program_states(settings: Settings) -> dict[str, dict[str, Any]]:
    """{name: state} from supervisord: statename, pid, spawnerr, … Empty while it does not answer."""
    try:
        with _rpc(settings) as proxy:
            return {info["name"]: info for info in proxy.supervisor.getAllProcessInfo()}  # type: ignore[union-attr]
    except (OSError, xmlrpc.client.Error):
        return {}


def _rpc(settings: Settings) -> xmlrpc.client.ServerProxy:
    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(serverurl=f"unix://{settings.run_dir / 'supervisor.sock'}")
    return xmlrpc.client.ServerProxy("http://localhost", transport=transport)


def leftover_processes(settings: Settings) -> list[psutil.Process]:
    """Other processes of this home, left running by a killed supervisor."""
    home, own = str(settings.home), os.getpid()
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != own and process.environ().get(HOME_VARIABLE) == home and process.status() != "zombie":
                processes.append(process)
    return processes


def end_leftover_processes(settings: Settings, patience: float = STOP_SECONDS) -> int:
    """End the processes left by a killed `up`: first supervisord (which stops the others in order), then all with TERM
    and KILL. Returns the number of processes. Raises Unavailable when one does not end."""
    left = leftover_processes(settings)
    count = len(left)
    _signal([p for p in left if _is_supervisor(p)], signal.SIGTERM, patience)
    _signal(leftover_processes(settings), signal.SIGTERM, min(patience, 8.0))
    _signal(leftover_processes(settings), signal.SIGKILL, 5.0)
    if left := leftover_processes(settings):
        raise Unavailable(f"Process {left[0].pid} of an earlier start does not end; end it and try again.")
    return count


def _is_supervisor(process: psutil.Process) -> bool:
    try:
        return "cli.launch.supervision" in process.cmdline()
    except psutil.Error:
        return False


def _signal(processes: list[psutil.Process], number: int, patience: float) -> None:
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.send_signal(number)
    psutil.wait_procs(processes, timeout=patience)


def last_log_line(settings: Settings, name: str) -> str:
    """The last line of a program's log, for an error message."""
    try:
        text = (settings.home / "logs" / f"{name}.log").read_text(errors="replace")
    except OSError:
        return ""
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("speculoos.errors.") if lines else ""


def end_with_parent(parent: int) -> None:
    """On Linux, get SIGTERM when the parent dies; on other systems the next `up` ends this process."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


def main() -> None:
    from supervisor import supervisord

    from cli.launch import steady_log

    set_private_umask()
    config, parent = sys.argv[1:3]
    steady_log.install()
    sys.stdout, sys.stderr = steady_log.ErrorIgnoringStream(sys.stdout), steady_log.ErrorIgnoringStream(sys.stderr)
    end_with_parent(int(parent))
    supervisord.main(["-n", "-c", config])


if __name__ == "__main__":
    main()
