"""Several servers used as one: load, back-off, and no answer lost or doubled when one of them dies."""

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest

from corpus import endpoints
from corpus.conversations import GenerateOptions
from corpus.endpoints import FIRST_PAUSE, LONGEST_PAUSE, PATIENCE, EndpointPool
from corpus.generate_remote import generate_remote
from corpus.importing import import_prompts
from corpus.shards import read_rows
from speculoos.errors import BadInput, Cancelled, Unavailable
from speculoos.reporting import SilentReporter
from speculoos.settings import Endpoint
from tests.tools.local_server import start_server
from tests.tools.ports import free_ports
from tests.workers.holds import ANSWERS, hold

SERVER = "tests.corpus.flaky_server"
KEY = "sesame-4711"
GONE = openai.APIConnectionError(request=httpx.Request("POST", "http://x"))


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pool_of(clock: Clock, messages: list[str] | None = None) -> EndpointPool:
    urls = ["http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1"]
    endpoint = Endpoint("pair", urls, model="m", concurrency=2)
    return EndpointPool(
        [endpoint], log=lambda message, level: messages.append(message) if messages is not None else None, clock=clock
    )


def take(pool: EndpointPool) -> str:
    return pool._acquire(threading.Event()).label


def test_requests_go_to_the_server_with_the_least_to_do(clock: Clock) -> None:
    pool = pool_of(clock)
    assert [take(pool) for _ in range(4)] == ["pair 1", "pair 2", "pair 1", "pair 2"]
    assert pool.slots == 4 and not any(server.can_accept(clock.at) for server in pool.servers)


def test_a_server_that_fails_is_left_out_longer_each_time_and_comes_back_with_one_request(clock: Clock) -> None:
    messages: list[str] = []
    pool = pool_of(clock, messages)
    first = pool.servers[0]
    pauses = []
    for _ in range(9):
        first.active_requests += 2
        pool._release(first, GONE)
        pool._release(first, GONE)  # requests that were in flight count once
        pauses.append(first.paused_until - clock.at)
        assert not first.can_accept(clock.at) and take(pool) == "pair 2"
        pool.servers[1].active_requests = 0
        clock.at = first.paused_until
        assert first.can_accept(clock.at)
    assert pauses[:3] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE] and pauses[-1] == LONGEST_PAUSE
    first.active_requests = 1
    assert not first.can_accept(clock.at), "one request finds out, the others do not wait for it"
    pool._release(first)
    assert first.can_accept(clock.at) and first.failures == 0
    assert messages == [
        "pair 1 does not respond (no connection); the others get its requests.",
        "pair 1 responds again.",
    ]


def test_when_no_server_answers_for_long_the_work_is_given_up(clock: Clock) -> None:
    pool = pool_of(clock)
    for server in pool.servers:
        server.active_requests += 1
        pool._release(server, GONE)
        server.paused_until = clock.at + 10 * PATIENCE
    clock.at += PATIENCE + 1
    with pytest.raises(Unavailable, match="None of the endpoints has answered for 120 s: pair 1, pair 2"):
        take(pool)


def test_waiting_for_a_server_can_be_stopped(clock: Clock) -> None:
    pool, stopped = pool_of(clock), threading.Event()
    for _ in range(4):
        take(pool)
    stopped.set()
    with pytest.raises(Cancelled):
        pool._acquire(stopped)


def test_a_missing_model_name_is_an_error() -> None:
    endpoints = [Endpoint("one", "http://x/v1", model="m"), Endpoint("two", "http://y/v1")]
    with pytest.raises(BadInput, match="Endpoint 'two' has no model name"):
        EndpointPool(endpoints)
    assert EndpointPool(endpoints, "other").config() == {"endpoint": "one,two", "model": "other"}


def start(port: int, folder: Path) -> subprocess.Popen[bytes]:
    return start_server(SERVER, folder / f"port-{port}-{time.monotonic()}", 0, 0.02, port)


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[list[int], list[subprocess.Popen]]]:
    """Ports and processes of two servers."""
    monkeypatch.setenv("PAIR_KEY", KEY)
    ports = free_ports(2)
    processes = [start(port, tmp_path) for port in ports]
    yield ports, processes
    for process in processes:
        process.kill()
        process.wait()


class KillingReporter(SilentReporter):
    """Kills the first server after 30 rows and restarts it after 90."""

    def __init__(self, ports: list[int], processes: list[subprocess.Popen], folder: Path):
        self.ports, self.processes, self.folder = ports, processes, folder
        self.lines: list[str] = []
        self.thresholds = [30, 90]

    def log(self, message: str, level: str = "info") -> None:
        self.lines.append(message)

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        if self.thresholds and done >= self.thresholds[0]:
            self.thresholds.pop(0)
            if self.thresholds:
                self.processes[0].kill()
                self.processes[0].wait()
            else:
                with hold(self.folder, ANSWERS):  # or the second server might answer all the rest meanwhile
                    self.processes[0] = start(self.ports[0], self.folder)


@pytest.mark.integration
def test_a_server_that_is_killed_and_comes_back_costs_no_answer(
    servers: tuple[list[int], list[subprocess.Popen]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "LONGEST_PAUSE", FIRST_PAUSE)  # longer ones might last until all rows are answered
    ports, processes = servers
    texts = [f"number {n}" for n in range(300)]
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    import_prompts(file, tmp_path / "prompts", SilentReporter())
    urls = [f"http://127.0.0.1:{port}/v1" for port in ports]
    endpoint = Endpoint("pair", urls, key_env="PAIR_KEY", model="echo", concurrency=3, timeout=10)
    reporter = KillingReporter(ports, processes, tmp_path)
    report = generate_remote(endpoint, "", tmp_path / "prompts", tmp_path / "out", GenerateOptions(), reporter)
    answers = sorted(row["messages"][-1]["content"] for row in read_rows(tmp_path / "out"))
    assert answers == sorted(f"you said: {text}" for text in texts)
    assert (report["rows"], report["failed"], report["tokens"]) == (300, [], 900) and report["retries"] > 0
    assert any("pair 1 does not respond" in line for line in reporter.lines)
    assert "pair 1 responds again." in reporter.lines
    answered = json.load(urllib.request.urlopen(urls[0]))["answers"]
    assert answered > 20, "the server that came back has its share again"


@pytest.mark.integration
def test_a_wrong_key_on_one_of_them_ends_the_run(
    servers: tuple[list[int], list[subprocess.Popen]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WRONG_KEY", "wrong-0815")
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{n}"}) + "\n" for n in range(20)))
    import_prompts(file, tmp_path / "prompts", SilentReporter())
    urls = [f"http://127.0.0.1:{port}/v1" for port in servers[0]]
    pair = [
        Endpoint(name, url, f"{name.upper()}_KEY", "echo") for name, url in zip(("pair", "wrong"), urls, strict=True)
    ]
    with pytest.raises(Unavailable, match="Endpoints 'pair', 'wrong' refuse: 401") as caught:
        generate_remote(pair, "", tmp_path / "prompts", tmp_path / "out", GenerateOptions(), SilentReporter())
    assert "wrong-0815" not in str(caught.value)


@pytest.mark.integration
def test_a_request_that_takes_every_server_too_long_fails_and_the_others_arrive(
    servers: tuple[list[int], list[subprocess.Popen]], tmp_path: Path
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("a", "take your time", "b", "c")))
    import_prompts(file, tmp_path / "prompts", SilentReporter())
    urls = [f"http://127.0.0.1:{port}/v1" for port in servers[0]]
    endpoint = Endpoint("pair", urls, "PAIR_KEY", "echo", concurrency=2, timeout=0.5, retries=0)
    report = generate_remote(endpoint, "", tmp_path / "prompts", tmp_path / "out", GenerateOptions(), SilentReporter())
    assert (report["rows"], report["failed"]) == (
        3,
        [{"id": "line-0000002", "reason": "no answer within the time limit"}],
    )


@pytest.mark.integration
def test_asking_servers_needs_no_torch() -> None:
    """So a shard's process starts in a second or two, not in ten."""
    code = "import sys, corpus.generate_remote, workers.child.work.generate_data; print('torch' in sys.modules)"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout.strip() == "False", process.stderr
