"""Commands start their own services when none run, use running ones, and block `up` while they run."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cli.launch.homelock import COMMAND, HomeLock
from cli.launch.programs import valkey_binary
from cli.launch.services import Services, programs_for
from cli.launch.supervision import end_leftover_processes, leftover_processes
from cli.launch.up import up
from cli.main import main
from speculoos.errors import Conflict
from speculoos.settings import Settings
from tests.tools.homes import add_answers, add_base, skip_speed_probe
from tests.tools.ports import free_ports
from tests.tools.zygote import begin
from tracking import db, jobs
from tracking.tables import Job
from workers.jobs import guided

pytestmark = pytest.mark.integration

COMMAND_LINE = [sys.executable, "-m", "cli.main"]


@pytest.fixture
def services_home(home: Settings) -> Iterator[Settings]:
    yield home
    end_leftover_processes(home, timeout=0)


@pytest.mark.usefixtures("forked_services")
def test_an_import_with_nothing_running_reports_every_row_and_leaves_nothing_behind(
    services_home: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"prompt": f"question {i}"}) for i in range(5)]
    file.write_bytes("\n".join([*rows, "{broken", '{"other": 1}']).encode() + b"\n\xff\xfe\n")
    result, progress = in_this_process(capsys, "data", "import", str(file), "--name", "mine")
    assert (result["rows_read"], result["rows"], result["bad_rows"]) == (8, 5, 3)
    assert [bad["line"] for bad in result["bad"]] == [6, 7, 8]
    assert "Import mine" in progress
    assert HomeLock(services_home).holder() == {}


@pytest.mark.usefixtures("forked_services")
def test_training_runs_in_services_of_its_own_and_shows_in_the_lists(
    services_home: Settings, tiny_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speculoos = partial(in_this_process, capsys)
    base, _ = speculoos("models", "add", str(tiny_base), "--name", "tiny")
    assert base["state"] == "ready" and base["weights_sha256"] and base["card"]["vocabulary"] > 0
    add_answers(services_home, base["id"])
    command = ("train", "medusa-smoke", "--model", "tiny", "--data", "answers", "--name", "heads")
    result, _ = speculoos(*command, "--set", "max_steps=3", "--set", "batch_tokens=128", "--set", "max_length=128")
    assert result["checkpoint"] == "tiny@heads" and result["step"] == 3 and result["job_state"] == "SUCCEEDED"
    listed, _ = speculoos("models", "list")
    assert "heads" in [c["name"] for m in listed for c in m["checkpoints"]]
    assert Path(result["path"], "model.safetensors").is_file()


@pytest.mark.usefixtures("forked_services")
def test_a_job_that_fails_gives_its_sentence_and_exit_code(
    services_home: Settings, tiny_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_id = add_answers(services_home, add_base(services_home, tiny_base), length=4)
    (services_home.home / "datasets" / data_id / "dataset.json").write_text('{"kind": "conversations", "rows": 41}')
    assert main(["train", "medusa", "--model", "tiny", "--data", "answers", "--json"]) == 1
    captured = capsys.readouterr()
    error = json.loads(captured.out.strip().splitlines()[-1])["error"]
    assert "failed" in error["message"] and error["code"] == "damaged"
    assert error["hint"].startswith("Create the dataset again")
    assert "Traceback" not in captured.err
    lines, _ = in_this_process(capsys, "jobs", "log", "Train medusa-answers")
    assert isinstance(lines, list)
    shown, _ = in_this_process(capsys, "jobs", "show", "Train medusa-answers")
    assert shown["state"] == "FAILED" and shown["error"] in error["message"]


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_services")
def test_the_quickstart_goes_the_whole_way_and_prints_its_figures(
    services_home: Settings, tiny_base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a tiny random model, which has nothing to learn, and few questions. The figures of the real model are in
    docs/benchmarks.md."""
    monkeypatch.setattr(guided, "SHORT_QUESTIONS", {"limit": 8, "max_tokens": 24})
    monkeypatch.setitem(guided.SHORT_ANSWERS, "max_tokens", 48)
    add_base(services_home, tiny_base)
    result, progress = in_this_process(capsys, "quickstart", "--model", "tiny", "--limit", "32")
    assert result["checkpoint"] == "tiny@guided" and Path(result["path"], "model.safetensors").is_file()
    assert result["identical_to_plain"] is True and result["ties"] >= 0 and result["prompts"] >= 8
    assert result["mean_accepted_length"] >= 1.0
    assert result["tokens_per_second"] > 0 and result["plain_tokens_per_second"] > 0
    for verb in ("Import", "Generate", "Train", "Evaluate"):
        assert verb in progress
    job_names = [j["name"] for j in in_this_process(capsys, "jobs", "list")[0]]
    assert len(job_names) == 4
    arguments = ("generate", "--model", result["checkpoint"], "--prompt", "hello", "--max-tokens", "5")
    assert len(in_this_process(capsys, *arguments)[0]["token_ids"]) == 5


def in_this_process(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[dict, str]:
    """Run a `speculoos` command in this process: its result and stderr. Its services still run in other processes."""
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out.strip().splitlines()[-1]), captured.err


def test_a_worker_and_an_inference_server_can_be_started_alone(
    services_home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    from ops.health import check

    (port,) = free_ports(1)
    skip_speed_probe(services_home.home)
    with Services(services_home, ("broker",)):
        worker = begin("cli.main", ["worker", "--queue", "io", "--threads", "2"])
        server = begin("cli.main", ["serve", "--port", str(port)])
        try:
            deadline = time.monotonic() + 300
            while not (worker_answers := check(services_home, ["worker-io"])["worker-io"].ok) or not _healthy(port):
                assert time.monotonic() < deadline, f"worker {worker_answers}"
                time.sleep(0.3)
            refused = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False)
            token = (services_home.home / "secrets" / "inference-token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            listed = httpx.get(f"http://127.0.0.1:{port}/v1/models", headers=headers, trust_env=False)
        finally:
            for process in (worker, server):
                process.terminate()
            assert worker.wait(30) == 0
            server.wait(30)
    assert refused.status_code == 401 and listed.status_code == 200


def _healthy(port: int) -> bool:
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def test_up_names_the_command_that_runs_the_services(services_home: Settings) -> None:
    lock = HomeLock(services_home)
    assert lock.acquire(COMMAND, ())
    with pytest.raises(Conflict, match=f"process {os.getpid()}"):
        up(services_home)
    lock.release()


def test_workers_that_beat_elsewhere_are_used_and_none_is_started_beside_them(
    services_home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: REDIS_URL names the broker, and workers and reconciler are on other machines."""
    from speculoos.settings import load
    from tracking.tables import Preference

    (port,) = free_ports(1)
    command = [valkey_binary(), "--port", str(port), "--save", "", "--bind", "127.0.0.1"]
    broker = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=services_home.home)
    monkeypatch.setenv("REDIS_URL", f"redis://127.0.0.1:{port}/0")
    wait_for_port(port)
    try:
        for name in ("worker-io", "reconciler"):
            with db.writing(services_home) as session:
                session.add(Preference(key=f"process:{name}@another-machine:7", value={"name": name}))
        with Services(load(), programs_for("io")) as services:
            services.ensure_running()
            assert not services.is_owner and not leftover_processes(services_home)
    finally:
        broker.terminate()
        broker.wait()


def test_ctrl_c_in_mid_job_interrupts_it_and_says_how_it_goes_on(services_home: Settings, tiny_base: Path) -> None:
    add_answers(services_home, add_base(services_home, tiny_base), rows=200)
    command = ["train", "medusa", "--model", "tiny", "--data", "answers", "--name", "heads"]
    long = ["--set", "epochs=2000", "--set", "max_length=128", "--set", "batch_tokens=256"]
    process = subprocess.Popen([*COMMAND_LINE, *command, *long], stderr=subprocess.PIPE, text=True)
    try:
        job = wait_for_state(services_home, "RUNNING", steps=1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "resumes at the next `speculoos up`" in stderr and job.id[:8] in stderr
    with db.reading(services_home) as session:
        assert jobs.get(session, job.id).state == "INTERRUPTED"
    assert not leftover_processes(services_home)


def wait_for_port(port: int, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"nothing listens on port {port}")


def wait_for_state(settings: Settings, state: str, steps: int = 0, seconds: float = 300) -> Job:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with db.reading(settings) as session:
            job = session.query(Job).order_by(Job.created_at.desc()).first()
        if job and job.state == state and job.done >= steps:
            return job
        time.sleep(0.2)
    raise AssertionError(f"the job is {job.state if job else 'not there'}, {job.done if job else 0} steps, not {state}")
