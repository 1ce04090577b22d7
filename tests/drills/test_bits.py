"""Bits flip on the disk in a base, a draft, training data and a training state: no damaged file is ever used."""

import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from speculoos.settings import Settings
from tests.browser.workbench import Workbench, add_base, add_heads, make_workbench
from tests.drills.trainings import SETTINGS, Trainings
from tests.tools import homes
from tests.tools.figures import Figures
from tests.workers.conftest import Bench
from tracking import db
from tracking.tables import Base, Checkpoint, Dataset
from workers.jobs.requests import GenerateData, ImportPrompts, Train
from workers.jobs.submit import submit

ROUNDS = int(os.environ.get("DRILLS_ROUNDS", "10"))
QUESTION = {"messages": [{"role": "user", "content": "Say it"}], "max_tokens": 16, "temperature": 0}


@contextmanager
def damaged(path: Path, rng: random.Random) -> Iterator[None]:
    """Flip a random bit of the file for the duration of the block."""
    whole = path.read_bytes()
    position, bit = rng.randrange(len(whole)), rng.randrange(8)
    changed = bytearray(whole)
    changed[position] ^= 1 << bit
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(whole)


@pytest.fixture
def servers(tmp_path: Path, clean_environment: None) -> Iterator[Workbench]:
    workbench = make_workbench(tmp_path / "home")
    try:
        workbench.start("inference", "web")
        yield workbench
    finally:
        workbench.end()


def ask(bench: Workbench, model: str) -> httpx.Response:
    url = f"http://127.0.0.1:{bench.settings.inference_port}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {bench.settings.inference_token}"}
    return httpx.post(url, json={"model": model, **QUESTION}, headers=headers, timeout=120, trust_env=False)


def text(response: httpx.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


def is_refused_in_one_line(response: httpx.Response) -> bool:
    """Whether the request was refused with a one-line message."""
    message = "" if response.is_success else response.json()["error"]["message"]
    return response.status_code >= 400 and bool(message) and "\n" not in message and "Traceback" not in message


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_bits_flipped_in_bases_and_drafts(servers: Workbench, figures: Figures) -> None:
    """Each round damages a new copy before its first request. After the repair it must answer like an undamaged one."""
    rng, used, offered, not_back = random.Random(31), 0, 0, 0
    reference = text(ask(servers, _named(servers, "whole")))
    for number in range(ROUNDS):
        name = _named(servers, f"base-{number}")
        with damaged(_weights(servers, Base, name), rng):
            used += not is_refused_in_one_line(ask(servers, name))
        not_back += text(ask(servers, name)) != reference
        model = f"{name}@heads"
        checkpoint = add_heads(servers, _row(servers, Base, name).id, "heads")
        address = f"{servers.url}/api/checkpoints/{checkpoint}/download"
        with damaged(_weights(servers, Checkpoint, "heads", checkpoint), rng):
            used += not is_refused_in_one_line(ask(servers, model))
            offered += httpx.get(address, trust_env=False).is_success
        not_back += text(ask(servers, model)) != reference or not httpx.get(address, trust_env=False).is_success
    figures.record(flips=2 * ROUNDS, damaged_files_used=used, damaged_files_offered=offered, not_usable_again=not_back)
    assert (used, offered, not_back) == (0, 0, 0)


def _named(bench: Workbench, name: str) -> str:
    add_base(bench, name)
    return name


def _row(bench: Workbench, table: type, name: str) -> Base:
    with db.reading(bench.settings) as session:
        return session.query(table).filter_by(name=name).one()


def _weights(bench: Workbench, table: type, name: str, row_id: str = "") -> Path:
    with db.reading(bench.settings) as session:
        row = session.get_one(table, row_id) if row_id else session.query(table).filter_by(name=name).one()
    path = Path(row.path)
    return (path if path.is_absolute() else bench.settings.home / path) / "model.safetensors"


@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_bits_flipped_in_shards(home: Settings, broker: str, tiny_base: Path, tmp_path: Path, figures: Figures) -> None:
    """Every second round, rows are missing instead. A training reports the damage, and succeeds after the repair."""
    bench = Bench(replace(home, redis_url=f"{broker}?virtual_host=8"), SPECULOOS_WORK_MODULES="")
    rng, used = random.Random(37), 0
    try:
        bench.worker("io")
        bench.worker("gpu")
        bench.reconciler()
        base_id = homes.add_base(bench.settings, tiny_base)
        dataset_id, shard = answers(bench, base_id, tmp_path)
        for number in range(ROUNDS):
            with (cut if number % 2 else damaged)(shard, rng):
                job = train(bench, base_id, dataset_id)
                bench.wait_for(job, lambda row: row.state in ("SUCCEEDED", "FAILED"), "an end", 120)
                row = bench.job(job)
                used += row.state != "FAILED" or not row.error or "\n" in row.error
        bench.wait(train(bench, base_id, dataset_id), "SUCCEEDED", 120)
    finally:
        bench.end()
    figures.record(flips=ROUNDS - ROUNDS // 2, cuts=ROUNDS // 2, jobs=ROUNDS + 1, damaged_files_used=used)
    assert used == 0


@contextmanager
def cut(path: Path, rng: random.Random) -> Iterator[None]:
    """Remove some of the last rows for the duration of the block."""
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: rng.randrange(1, len(lines))]))
    try:
        yield
    finally:
        path.write_bytes(whole)


def answers(bench: Bench, base_id: str, folder: Path) -> tuple[str, Path]:
    """Generate a dataset; returns its id and the path of its shard."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Tell me about number {n} and foxes."}) + "\n" for n in range(24)))
    prompts = submit(ImportPrompts(path=str(file)), name="prompts", settings=bench.settings)
    request = GenerateData(prompts.request["dataset_id"], base_id=base_id, max_tokens=24, batch_size=8)
    job = submit(request, name="answers", settings=bench.settings)
    bench.wait(job.id, "SUCCEEDED", 180)
    with db.reading(bench.settings) as session:
        path = Path(session.get_one(Dataset, job.request["dataset_id"]).path)
    folder = path if path.is_absolute() else bench.settings.home / path
    return job.request["dataset_id"], next(folder.glob("shard-*.jsonl"))


def train(bench: Bench, base_id: str, dataset_id: str) -> str:
    settings = {**SETTINGS, "max_steps": 4}
    return submit(Train("medusa", base_id, dataset_id, settings), settings=bench.settings).id


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_bits_flipped_in_states(home: Settings, broker: str, tiny_base: Path, figures: Figures) -> None:
    """Damage the newest state while no training runs; every second time it is truncated. The training restarts from
    an older state or from the beginning, and its weights equal those of an undisturbed training."""
    bench = Bench(replace(home, redis_url=f"{broker}?virtual_host=9"), SPECULOOS_WORK_MODULES="")
    base_id = homes.add_base(bench.settings, tiny_base)
    dataset_id = homes.add_answers(bench.settings, base_id)
    trainings = Trainings(bench.settings, base_id, dataset_id, steps=600, save_every=50)
    rng = random.Random(41)
    try:
        worker = bench.worker("gpu")
        trainings.submit_next()
        trainings.wait_ended()
        for number in range(ROUNDS):
            trainings.submit_next()
            bench.wait_for(trainings.ids[-1], lambda job: job.done >= 120, "two states", 120)
            worker.terminate()
            assert worker.wait(30) == 0
            assert trainings.current().state == "INTERRUPTED"
            spoil(bench, rng, truncate if number % 2 else flip)
            worker = bench.worker("gpu")
            trainings.wait_ended()
    finally:
        bench.end()
    different = len(set(trainings.weights())) - 1
    figures.record(flips=ROUNDS, jobs=len(trainings.ids), lost=0, doubled=0, different_weights=different)
    assert different == 0


def spoil(bench: Bench, rng: random.Random, damage: Callable[[Path, random.Random], None]) -> None:
    """Damage one file of the newest state."""
    states = sorted((bench.settings.home / "checkpoints").rglob("state-*"), key=lambda path: path.stat().st_mtime)
    newest = [path for path in states if path.is_dir() and not path.name.startswith(".")][-1]
    damage(rng.choice(sorted(path for path in newest.iterdir() if path.is_file())), rng)


def flip(path: Path, rng: random.Random) -> None:
    changed = bytearray(path.read_bytes())
    changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    path.write_bytes(changed)


def truncate(path: Path, rng: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(rng.randrange(path.stat().st_size))
