"""Two network namespaces as two machines: the first has pages, Redis, PostgreSQL and an S3 server, the second workers.

Neither sees a folder of the other; an empty disk is mounted over it. The first machine gets files of the second only
through the store.
"""

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from sqlalchemy.engine import make_url

from cli.launch.programs import valkey_binary
from corpus.shards import read_rows
from speculoos.settings import PROJECT_ROOT, Settings
from tests.tiny import make_tiny_base
from tests.tools import databases, namespaces, s3
from tests.tools.figures import Figures
from tests.tools.namespaces import Machine
from tests.tools.running import wait_for
from tests.workers.conftest import QUICK
from tracking import db, processes
from tracking.tables import Checkpoint, Dataset, DeviceLease, Job

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1200)]
PROMPTS, ROWS = 60, 12
PORTS = {"redis": 6379, "web": 7860}
PASSWORD = "only-for-this-drill"
STEPS = 40


class Site:
    """Both machines and their processes. The drill itself reads the rows through PostgreSQL's socket."""

    def __init__(self, folder: Path):
        self.first, self.second = namespaces.two(folder)
        self.started: list[subprocess.Popen[bytes]] = []
        self.cleanups = [self.second.end, self.first.end]
        self.postgres = databases.Postgres(self.first.address, ("ip", "netns", "exec", self.first.name))
        self.cleanups.insert(0, self.postgres.end)
        self.s3 = s3.S3(self.first.address, ("ip", "netns", "exec", self.first.name))
        self.cleanups.insert(0, self.s3.end)
        self.redis()
        socket = self.postgres.new()
        self.database = f"postgresql://tester@{self.first.address}/{make_url(socket).database}"
        common = {"database_url": socket, "redis_url": "", "store": self.s3.url}
        self.settings = Settings(home=self.first.folder / "home", **common)
        self.second_settings = Settings(home=self.second.folder / "home", **common)

    def redis(self) -> None:
        folder = self.first.folder / "redis"
        folder.mkdir()
        options = ["--port", str(PORTS["redis"]), "--bind", self.first.address, "--unixsocket", str(folder / "s.sock")]
        command = [valkey_binary(), *options, "--dir", str(folder), "--save", "", "--protected-mode", "no"]
        self._begin(self.first, command, folder / "redis.log")
        client = redis.Redis(unix_socket_path=str(folder / "s.sock"))
        wait_for(lambda: _answers(client), "Redis", 20)

    def environment(self, machine: Machine) -> dict[str, str]:
        """The environment of the processes of a machine."""
        outside = ("SPECULOOS_", "DATABASE_URL", "REDIS_URL", "AWS_")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(outside)}
        overrides = {
            "SPECULOOS_HOME": str(machine.folder / "home"),
            "DATABASE_URL": self.database,
            "REDIS_URL": f"redis://{self.first.address}:{PORTS['redis']}/0",
            "SPECULOOS_STORE": self.s3.url,
            "SPECULOOS_HOST": self.first.address,
            "SPECULOOS_ALLOWED_HOSTS": self.first.address,
            "SPECULOOS_PASSWORD": PASSWORD,
            "SPECULOOS_STARTER": str(machine.folder / "no-starter"),
            "SPECULOOS_DEVICE": "cpu",
            "HF_HUB_OFFLINE": "1",
            "SPECULOOS_WORK_MODULES": "",
        }
        return {**inherited, **QUICK, **self.s3.environment, **overrides}

    def start(self, machine: Machine, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `python -m …` on a machine. Its log is beside the home."""
        return self._begin(machine, [sys.executable, "-m", *arguments], machine.folder / f"{len(self.started)}.log")

    def command(self, *arguments: str) -> dict[str, Any]:
        """Run a `speculoos` command on the first machine; returns its JSON."""
        full = [*self.first.run, sys.executable, "-m", "cli.main", *arguments, "--json"]
        environment = self.environment(self.first)
        completed = subprocess.run(full, capture_output=True, text=True, timeout=600, env=environment, cwd=PROJECT_ROOT)
        assert completed.returncode == 0, (
            f"{arguments}: {completed.stdout[-500:]}{completed.stderr[-1500:]}\n{self.output()}"
        )
        return json.loads(completed.stdout.strip().splitlines()[-1])

    def job(self, job_id: str) -> Job:
        with db.reading(self.settings) as session:
            return session.get_one(Job, job_id)

    def row(self, table: type, row_id: str, home: Settings | None = None) -> Any:
        with db.reading(home or self.settings) as session:
            return session.get_one(table, row_id)

    def output(self) -> str:
        logs = [*self.first.folder.glob("*.log"), *self.second.folder.glob("*.log")]
        return "\n".join(f"== {log.parent.name}/{log.name}\n{log.read_text(errors='replace')[-2500:]}" for log in logs)

    def end(self) -> None:
        for process in self.started:
            process.terminate()
        for process in reversed(self.started):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for cleanup in self.cleanups:
            cleanup()

    def _begin(self, machine: Machine, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        environment = self.environment(machine) if hasattr(self, "database") else None
        with log.open("ab") as out:
            full = [*machine.run, *command]
            self.started.append(subprocess.Popen(full, stdout=out, stderr=out, env=environment, cwd=PROJECT_ROOT))
        return self.started[-1]


def _answers(client: redis.Redis) -> bool:
    try:
        return client.ping()
    except redis.RedisError:
        return False


@pytest.fixture
def site(tmp_path: Path, clean_environment: None) -> Iterator[Site]:
    try:
        new_site = Site(tmp_path)
    except (namespaces.Missing, databases.Missing, s3.Missing) as reason:
        pytest.skip(str(reason))
    yield new_site
    new_site.end()


def test_the_second_machine_works_for_the_first_without_a_shared_folder(site: Site, figures: Figures) -> None:
    db.upgrade(site.settings)
    workers = {queue: site.start(site.second, "cli.main", "worker", "--queue", queue) for queue in ("gpu", "io")}
    site.start(site.first, "workers.supervise.reconcile")
    site.start(site.first, "app.main")
    wait_for(lambda: len(alive(site)) >= 3, "workers and reconciler", 120)
    listing = subprocess.run([*site.first.run, "ls", "-A", str(site.second.folder)], capture_output=True, text=True)
    assert (listing.returncode, listing.stdout) == (0, ""), "the first sees nothing of the second"

    make_tiny_base(site.first.folder / "tiny")
    site.command("models", "add", str(site.first.folder / "tiny"), "--source", "folder", "--name", "tiny")
    file = site.first.folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"question {n}"}) + "\n" for n in range(PROMPTS)))
    site.command("data", "import", str(file), "--name", "prompts")
    site.command(
        *("data", "generate", "--prompts", "prompts", "--model", "tiny", "--name", "answers"),
        *("--shard-rows", str(ROWS), "--max-tokens", "24", "--batch-size", "2"),
    )
    job_id = site.row(Dataset, find(site, Dataset, "answers")).job_id
    wait_for(lambda: at_second_shard(site, job_id), "a shard after the first", 180)
    time.sleep(1)
    workers["gpu"].send_signal(signal.SIGKILL)
    workers["gpu"].wait()
    site.start(site.second, "cli.main", "worker", "--queue", "gpu")
    wait_for(lambda: site.job(job_id).state in ("SUCCEEDED", "FAILED"), "the generation", 300)
    job = site.job(job_id)
    assert job.state == "SUCCEEDED", f"{job.error}\n{site.output()}"
    trained = site.command(
        *("train", "medusa", "--model", "tiny", "--data", "answers", "--name", "heads", "--wait"),
        *("--set", f"max_steps={STEPS}", "--set", "epochs=0.0", "--set", "batch_tokens=256"),
        *("--set", "max_length=64", "--set", "base_dtype=float32"),
    )

    data = site.row(Dataset, job.request["dataset_id"])
    heads = site.row(Checkpoint, find(site, Checkpoint, "heads"))
    second_folder = Path(site.row(Checkpoint, heads.id, site.second_settings).path)
    assert data.rows == PROMPTS and heads.state == "ready", trained
    assert second_folder.is_dir() and not Path(heads.path).exists() and not Path(data.path).exists()
    with db.reading(site.settings) as session:
        owners = {job.owner.split("/")[0] for job in session.query(Job).filter(Job.owner != "")}
        devices = {lease.device for lease in session.query(DeviceLease)}
        hosts = {row.key.rpartition("@")[2].rpartition(":")[0] for row in processes.alive(session)}
    assert len(hosts) == 2 and owners <= hosts and len(owners) == 1, (owners, hosts)
    assert devices and all("@" in device for device in devices)

    zipped = download(site, heads.id)
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        name = next(n for n in archive.namelist() if n.endswith("model.safetensors"))
        assert hashlib.sha256(archive.read(name)).hexdigest() == heads.sha256
    assert Path(heads.path).is_dir(), "the store brought the files into the first home"
    same = [path.name for path in second_folder.iterdir() if path.is_file() and not path.name.startswith(".")]
    assert all((second_folder / name).read_bytes() == (Path(heads.path) / name).read_bytes() for name in same)
    ids = [line["id"] for line in read_rows(site.row(Dataset, data.id, site.second_settings).path)]
    doubled = len(ids) - len(set(ids))
    attempts = sum(shard.attempt for shard in shards_of(site, job_id))
    figures.record(
        jobs=PROMPTS // ROWS + 4,
        doubled=doubled,
        rows=PROMPTS,
        kills=1,
        attempts=attempts,
        store_files=len(stored_names(site)),
        lost=PROMPTS - len(set(ids)),
    )
    assert (len(ids), doubled) == (PROMPTS, 0)
    assert attempts == PROMPTS // ROWS + 1, "the shard of the killed worker was made by another, and no other twice"


def at_second_shard(site: Site, job_id: str) -> bool:
    states = [shard.state for shard in shards_of(site, job_id) if shard.attempt]
    return "SUCCEEDED" in states and "RUNNING" in states


def alive(site: Site) -> list[Any]:
    with db.reading(site.settings) as session:
        return processes.alive(session)


def shards_of(site: Site, job_id: str) -> list[Job]:
    with db.reading(site.settings) as session:
        return session.query(Job).filter(Job.parent_id == job_id).all()


def find(site: Site, table: type, name: str) -> str:
    with db.reading(site.settings) as session:
        return session.query(table).filter(table.name == name).one().id


def download(site: Site, checkpoint_id: str) -> bytes:
    """The zip that a browser on the first machine downloads."""
    script = (
        "import sys, httpx\n"
        "client = httpx.Client(base_url=sys.argv[1], trust_env=False, timeout=60)\n"
        "said = client.post('/login', data={'password': sys.argv[2]}, headers={'Origin': sys.argv[1]})\n"
        "answer = client.get(f'/api/checkpoints/{sys.argv[3]}/download')\n"
        "assert answer.status_code == 200, (said.status_code, answer.status_code, answer.text[:500])\n"
        "sys.stdout.buffer.write(answer.content)\n"
    )
    url = f"http://{site.first.address}:{PORTS['web']}"
    command = [*site.first.run, sys.executable, "-c", script, url, PASSWORD, checkpoint_id]
    completed = subprocess.run(command, capture_output=True, timeout=240)
    assert completed.returncode == 0, f"{completed.stderr.decode()[-1500:]}\n{site.output()}"
    return completed.stdout


def stored_names(site: Site) -> list[str]:
    """The names in the store, read from the first machine."""
    script = "import sys\nfrom speculoos.store import Store\nprint('\\n'.join(Store(sys.argv[1]).names()))\n"
    command = [*site.first.run, sys.executable, "-c", script, site.s3.url]
    completed = subprocess.run(
        command, capture_output=True, text=True, env=site.environment(site.first), cwd=PROJECT_ROOT
    )
    return completed.stdout.split()
