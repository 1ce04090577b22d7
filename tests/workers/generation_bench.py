"""Helpers for sharded generations on real processes: prompts, endpoints and checks of the result."""

import hashlib
import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from corpus.shards import read_rows, shard_files
from models.damage import dataset_problems
from tests.tools.local_server import start_server
from tests.tools.ports import free_ports
from tests.workers.conftest import Bench
from tracking import db, shards
from tracking.tables import Dataset, Job
from workers.jobs.requests import GenerateData, ImportPrompts
from workers.jobs.submit import submit

ECHO = "tests.corpus.flaky_server"
KEY = "sesame-4711"


class Servers:
    """Two local servers as one endpoint `pair`; `start(port)` makes the process of one."""

    def __init__(self, bench: Bench, start: Callable[[int], subprocess.Popen[bytes]], model: str, key: str):
        self._start, self.ports = start, free_ports(2)
        self.processes = [start(port) for port in self.ports]
        urls = json.dumps([f"http://127.0.0.1:{port}/v1" for port in self.ports])
        lines = ["[endpoints.pair]", f"url = {urls}", 'key_env = "PAIR_KEY"', f'model = "{model}"', "concurrency = 2"]
        (bench.settings.home / "settings.toml").write_text("\n".join([*lines, "timeout = 30"]) + "\n")
        bench.environment["PAIR_KEY"] = key

    def kill(self, number: int) -> None:
        self.processes[number].kill()
        self.processes[number].wait()

    def start(self, number: int) -> None:
        self.processes[number] = self._start(self.ports[number])

    def end(self) -> None:
        for number in range(len(self.processes)):
            self.kill(number)


def echoes(bench: Bench, seconds: float) -> Servers:
    """Servers that echo the prompt, each answer after `seconds`."""

    def start(port: int) -> subprocess.Popen[bytes]:
        file = bench.settings.home / f"port-{port}"
        file.unlink(missing_ok=True)
        return start_server(ECHO, file, 0, seconds, port)

    return Servers(bench, start, "echo", KEY)


def prompts(bench: Bench, texts: Sequence[str]) -> str:
    """Import these texts as a prompt set; return its id."""
    file = bench.settings.home / "texts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    job = submit(ImportPrompts(path=str(file)), settings=bench.settings)
    bench.wait(job.id, "SUCCEEDED")
    return job.request["dataset_id"]


def generate(bench: Bench, source_id: str, shard_rows: int, **options: object) -> Job:
    """Submit a sharded generation through the endpoint `pair`."""
    request = GenerateData(source_id=source_id, endpoint="pair", shard_rows=shard_rows, **{"max_tokens": 8, **options})
    return submit(request, settings=bench.settings)


def parts(bench: Bench, job: Job) -> list[Job]:
    with db.reading(bench.settings) as session:
        return shards.list_shards(session, job.id)


def dataset(bench: Bench, job: Job) -> Dataset:
    with db.reading(bench.settings) as session:
        return session.get_one(Dataset, job.request["dataset_id"])


def ended_well(bench: Bench, job: Job) -> list[Job]:
    return [part for part in parts(bench, job) if part.state == "SUCCEEDED"]


def check_whole(bench: Bench, job: Job, count: int) -> None:
    """Every prompt has exactly one answer, and all counts agree."""
    job, data, shard_jobs = bench.job(job.id), dataset(bench, job), parts(bench, job)
    folder = Path(data.path)
    rows = list(read_rows(folder))
    prompt_ids = [row["id"] for row in read_rows(bench.settings.home / "datasets" / job.request["source_id"])]
    prompt_ids = prompt_ids[: job.request["limit"]]
    assert [row["id"] for row in rows] == prompt_ids, "each prompt once, in order"
    assert all(len(row["finish"]) == sum(m["role"] == "assistant" for m in row["messages"]) > 0 for row in rows)
    assert [part.state for part in shard_jobs] == ["SUCCEEDED"] * count and job.shards == count
    report = data.report
    assert (data.state, data.rows, data.bad_rows, report["failed_rows"]) == ("ready", len(prompt_ids), 0, 0)
    assert (job.done, job.total) == (len(prompt_ids), len(prompt_ids)) == (report["rows"], report["prompts"])
    assert report["finish"] == Counter(reason for row in rows for reason in row["finish"])
    assert report["tokens"] == sum(row["answer_tokens"] for row in rows)
    assert sum(part.done for part in shard_jobs) == len(prompt_ids) and report["shards"] == count
    assert dataset_problems(folder) == {} and not (folder / "parts").exists()


def sums(bench: Bench, job: Job) -> list[tuple[str, str]]:
    """(name, sha256) of the dataset's files of rows."""
    files = shard_files(dataset(bench, job).path)
    return [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in files]


def kill_children(bench: Bench, job: Job) -> int:
    """Kill (-9) the processes of all running shards; return how many."""
    pids = [part.child["pid"] for part in parts(bench, job) if part.state == "RUNNING" and part.child]
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return len(pids)
