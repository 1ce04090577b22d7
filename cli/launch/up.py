"""`speculoos up`: migrate the database, start all services, print the URL, and run in the foreground until Ctrl-C."""

import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from types import FrameType

import psutil

from cli.launch.homelock import UP, HomeLock
from cli.launch.programs import ALL_PROGRAMS, INFERENCE, WEB, programs
from cli.launch.services import stop_services
from cli.launch.supervision import ProcessSupervisor, end_leftover_processes
from ops import health
from speculoos.errors import BadInput, Conflict, Unavailable
from speculoos.faults import disk_full
from speculoos.files import read_inference_token
from speculoos.login_links import create_login_link
from speculoos.people import access_warning
from speculoos.settings import Settings

START_SECONDS = 300.0
POLL_SECONDS = 0.25


def up(settings: Settings) -> int:
    """Run the workbench in the foreground; returns the exit code. Prints the URL if it is already running.

    Raises Unavailable when the disk is full.
    """
    try:
        return _run(settings)
    except OSError as error:
        if not disk_full(error):
            raise
        path = error.filename or settings.home
        raise Unavailable(f"The disk that holds {path} is full; free some space and start again.") from None


def _run(settings: Settings) -> int:
    lock = HomeLock(settings)
    while not lock.acquire(UP, ALL_PROGRAMS):
        holder = lock.holder()
        if holder.get("mode") == UP:
            print(f"Speculoos is running already: {address(settings)}")
            return 0
        if holder:
            raise Conflict(
                f"A speculoos command (process {holder['pid']}) runs the services of {settings.home}; wait for it, or "
                "end it: its job resumes under `speculoos up`."
            )
        time.sleep(POLL_SECONDS)  # another process takes or releases the lock just now
    stop = _stop_on_signals(settings)
    supervisor: ProcessSupervisor | None = None
    try:
        if not settings.is_loopback and not settings.password:
            exposed = f"SPECULOOS_HOST is {settings.host}, which other machines can reach; set SPECULOOS_PASSWORD."
            raise BadInput(exposed)
        prepare(settings)
        _check_ports(settings)
        supervisor = ProcessSupervisor(settings, programs(settings))
        _say("Starting …")
        supervisor.start()
        if wait_healthy(supervisor, ALL_PROGRAMS, stop):
            with suppress(OSError):
                print(_welcome(settings), flush=True)
            while not stop.wait(POLL_SECONDS):
                supervisor.poll()
    finally:
        if supervisor:
            _say("Stopping (running jobs continue at the next start) …")
            stop_services(supervisor)
        lock.release()
    return 0


def address(settings: Settings) -> str:
    """URL of the pages, with a one-time login token if logins use tokens."""
    return create_login_link(settings, settings.url) if settings.login == "token" else settings.url


def prepare(settings: Settings) -> None:
    """Before each start: end leftover processes, migrate the database, create the inference token."""
    from ops.homes import open_home
    from tracking.db import dispose

    if count := end_leftover_processes(settings):
        _say(f"Ended {count} processes left by an earlier start.")
    settings.home.mkdir(parents=True, exist_ok=True)
    open_home(settings)
    dispose()
    read_inference_token(settings)


def wait_healthy(supervisor: ProcessSupervisor, names: tuple[str, ...], stop: threading.Event) -> bool:
    """Wait until all named services are healthy; False if `stop` was set. Raises Unavailable if one fails to start."""
    waiting, deadline = list(names), time.monotonic() + START_SECONDS
    while waiting and not stop.is_set():
        waiting = [name for name in waiting if not health.check(supervisor.settings, [name])[name].ok]
        supervisor.check(waiting)
        if waiting and time.monotonic() > deadline:
            part = health.check(supervisor.settings, waiting[:1])[waiting[0]]
            raise Unavailable(
                f"{waiting[0]} did not start within {START_SECONDS:.0f} s: {part.detail}", supervisor.log_hint
            )
        stop.wait(POLL_SECONDS if waiting else 0)
    return not stop.is_set()


def _check_ports(settings: Settings) -> None:
    for host, port, setting, name in (
        (settings.host, settings.port, "SPECULOOS_PORT", WEB),
        (settings.inference_host, settings.inference_port, "SPECULOOS_INFERENCE_PORT", INFERENCE),
    ):
        try:
            socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        except OSError:
            raise Conflict(
                f"Port {port} of {name} is in use{_user_of(port)}; end that process or set {setting} to another port."
            ) from None


def _user_of(port: int) -> str:
    """` by NAME (process N)`, or "" if unknown."""
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass
    return ""


def _stop_on_signals(settings: Settings) -> threading.Event:
    """An event set by the first Ctrl-C, TERM or HUP; a second one ends all processes immediately."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            _say("Ending immediately.")
            end_leftover_processes(settings, timeout=0)
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handle)
    return stop


def _welcome(settings: Settings) -> str:
    login = " (asks for the password of SPECULOOS_PASSWORD)" if settings.password else ""
    once = "\nThe link works once; `speculoos login-link` prints another." if settings.login == "token" else ""
    open_to = f"\n{warning}" if (warning := access_warning(settings)) else ""
    return f"Speculoos is up: {address(settings)}{login}{once}{open_to}\nHome: {settings.home}. Ctrl-C stops it."


def _say(message: str) -> None:
    with suppress(OSError):  # standard error may be a file on a full disk
        print(message, file=sys.stderr, flush=True)
