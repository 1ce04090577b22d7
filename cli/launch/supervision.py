"""Running programs under supervisord: its configuration, its start and ordered stop, and what a killed one left behind.

`python -m cli.launch.supervision CONFIG PARENT` is the supervisor process itself; it ends with its parent.
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
from speculoos.room import update_reserve
from speculoos.settings import PROJECT_ROOT, Settings

MARK = "SPECULOOS_SUPERVISED"
"""Environment variable that names the home in every supervised process, so that survivors can be found."""
STOP_SECONDS = 15.0
RESTARTS, STEADY_SECONDS = 3, 60
STOP_TIMES = {"SPECULOOS_STOP_SECONDS": "5", "SPECULOOS_KILL_SECONDS": "1"}
"""What a worker that is told to stop gives its child: it still marks the job before its own time is over."""
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
    """One supervisord with its programs; the caller holds the home's lock."""

    def __init__(self, settings: Settings, programs: list[Program]):
        self.settings = settings
        self.programs = programs
        self._process: subprocess.Popen[bytes] | None = None
        self._pids: dict[str, set[int]] = {}  # a program that dies again and again has many, one that is slow has one

    def start(self) -> None:
        """Write the configuration and start. Raises Unavailable when supervisord does not come up."""
        home, run = self.settings.home, self.settings.run_dir
        update_reserve(self.settings)
        for folder in (home / "logs", home / "broker"):
            folder.mkdir(parents=True, exist_ok=True)
        config = run / "supervisord.conf"
        text = supervisor_config(self.settings, self.programs)
        try:
            config.write_text(text)
        except OSError as error:
            raise Unavailable(f"{config} cannot be written ({error.strerror}); make room there.") from None
        with _output(home / "logs" / "supervisord.out") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "cli.launch.supervision", str(config), str(os.getpid())],
                **{"stdout": output, "stderr": output, "stdin": subprocess.DEVNULL, "cwd": PROJECT_ROOT},
                env={**STOP_TIMES, **os.environ, "SPECULOOS_HOME": str(home), MARK: str(home)},
                start_new_session=True,  # Ctrl-C reaches us alone; the order of stopping is ours
            )

    @property
    def log_hint(self) -> str:
        return f"The logs are in {self.settings.home / 'logs'}."

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def check(self, names: Iterable[str]) -> None:
        """Raise Unavailable, with the program's last words, when one of `names` was given up or keeps dying early."""
        if not self.alive:
            words = last_words(self.settings, "supervisord") or "it left no word"
            raise Unavailable(f"The supervisor ended: {words}", self.log_hint)
        for name, state in program_states(self.settings).items():
            seen = self._pids.setdefault(name, set())
            if state["pid"] and state["now"] - state["start"] > STEADY_SECONDS:
                seen.clear()
            seen.update({state["pid"]} - {0})
            if name in names and (state["statename"] == "FATAL" or len(seen) > RESTARTS):
                words = last_words(self.settings, name) or state["spawnerr"]
                raise Unavailable(f"{name} does not start: {words}", self.log_hint)

    def revive(self) -> None:
        """Start the programs that supervisord has given up."""
        for name, state in program_states(self.settings).items():
            if state["statename"] == "FATAL":
                with contextlib.suppress(OSError, xmlrpc.client.Error), _rpc(self.settings) as proxy:
                    proxy.supervisor.startProcess(f"{state['group']}:{name}", False)

    def stop(self) -> None:
        """Stop the programs in order, then supervisord; kill what is left after 15 s."""
        if self.alive and self._process:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_SECONDS - 1)
        end_survivors(self.settings, patience=1)
        if self._process:
            self._process.wait()
            self._process = None


def _output(path: Path) -> IO[bytes]:
    """Where supervisord's own words go; nowhere on a disk that has no room for them."""
    try:
        return open(path, "wb")
    except OSError:
        return open(os.devnull, "wb")


def program_states(settings: Settings) -> dict[str, dict[str, Any]]:
    """supervisord's word on each program: statename, pid, spawnerr … Empty while it does not answer."""
    try:
        with _rpc(settings) as proxy:
            return {info["name"]: info for info in proxy.supervisor.getAllProcessInfo()}  # type: ignore[union-attr]
    except (OSError, xmlrpc.client.Error):
        return {}


def _rpc(settings: Settings) -> xmlrpc.client.ServerProxy:
    from supervisor.xmlrpc import SupervisorTransport

    transport = SupervisorTransport(serverurl=f"unix://{settings.run_dir / 'supervisor.sock'}")
    return xmlrpc.client.ServerProxy("http://localhost", transport=transport)


def survivors(settings: Settings) -> list[psutil.Process]:
    """Processes of this home that run without us: left behind by a supervisor that was killed."""
    mark, mine = str(settings.home), os.getpid()
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != mine and process.environ().get(MARK) == mark and process.status() != "zombie":
                processes.append(process)
    return processes


def end_survivors(settings: Settings, patience: float = STOP_SECONDS) -> int:
    """End what a killed `up` left: its supervisord first (it stops the others in order), then each by TERM and KILL.

    Returns how many processes there were.
    """
    left = survivors(settings)
    count = len(left)
    supervisors = [p for p in left if _is_supervisor(p)]
    _signal(supervisors, signal.SIGTERM, patience)
    left = survivors(settings)
    _signal(left, signal.SIGTERM, min(patience, 8.0))
    _signal(survivors(settings), signal.SIGKILL, 5.0)
    if left := survivors(settings):
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


def last_words(settings: Settings, name: str) -> str:
    """The last line of a program's log, for an error message."""
    try:
        text = (settings.home / "logs" / f"{name}.log").read_text(errors="replace")
    except OSError:
        return ""
    said = [line for line in text.splitlines() if line.strip()]
    return said[-1].removeprefix("speculoos.errors.") if said else ""


def end_with_parent(parent: int) -> None:
    """Ask Linux for SIGTERM when the parent dies; elsewhere the next `up` ends what is left."""
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
    sys.stdout, sys.stderr = steady_log.Dropping(sys.stdout), steady_log.Dropping(sys.stderr)
    end_with_parent(int(parent))
    supervisord.main(["-n", "-c", config])


if __name__ == "__main__":
    main()
