"""Bits flip on the disk, in a base, a draft, training data and a training state: nothing damaged is ever used."""

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
def damaged(path: Path, chance: random.Random) -> Iterator[None]:
    """One bit of the file flipped, wherever; put right again afterwards."""
    whole = path.read_bytes()
    place, bit = chance.randrange(len(whole)), chance.randrange(8)
    changed = bytearray(whole)
    changed[place] ^= 1 << bit
    path.write_bytes(changed)
    try:
        yield
    finally:
        path.write_bytes(whole)


@pytest.fixture
def servers(tmp_path: Path, clean_environment: None) -> Iterator[Workbench]:
    made = make_workbench(tmp_path / "home")
    try:
        made.start("inference", "web")
        yield made
    finally:
        made.end()


def ask(bench: Workbench, model: str) -> httpx.Response:
    url = f"http://127.0.0.1:{bench.settings.inference_port}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {bench.settings.inference_token}"}
    return httpx.post(url, json={"model": model, **QUESTION}, headers=headers, timeout=120, trust_env=False)


def text(answer: httpx.Response) -> str:
    return answer.json()["choices"][0]["message"]["content"]


def is_a_sentence(answer: httpx.Response) -> bool:
    """Refused, and said why in one line."""
    said = "" if answer.is_success else answer.json()["error"]["message"]
    return answer.status_code >= 400 and bool(said) and "\n" not in said and "Traceback" not in said


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_bits_flipped_in_bases_and_drafts(servers: Workbench, figures: Figures) -> None:
    """Each in a copy of its own, asked for the first time while it is damaged; whole again, it answers as it should."""
    chance, used, offered, not_back = random.Random(31), 0, 0, 0
    reference = text(ask(servers, _named(servers, "whole")))
    for number in range(ROUNDS):
        name = _named(servers, f"base-{number}")
        with damaged(_weights(servers, Base, name), chance):
            used += not is_a_sentence(ask(servers, name))
        not_back += text(ask(servers, name)) != reference
        model = f"{name}@heads"
        checkpoint = add_heads(servers, _row(servers, Base, name).id, "heads")
        address = f"{servers.url}/api/checkpoints/{checkpoint}/download"
        with damaged(_weights(servers, Checkpoint, "heads", checkpoint), chance):
            used += not is_a_sentence(ask(servers, model))
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
    """Every second time rows are missing instead. A training says what is damaged; once it is whole, it trains."""
    bench = Bench(replace(home, redis_url=f"{broker}?virtual_host=8"), SPECULOOS_WORK_MODULES="")
    chance, used = random.Random(37), 0
    try:
        bench.worker("io")
        bench.worker("gpu")
        bench.reconciler()
        base_id = homes.add_base(bench.settings, tiny_base)
        dataset_id, shard = answers(bench, base_id, tmp_path)
        for number in range(ROUNDS):
            with (cut if number % 2 else damaged)(shard, chance):
                job = train(bench, base_id, dataset_id)
                bench.wait_for(job, lambda found: found.state in ("SUCCEEDED", "FAILED"), "an end", 120)
                said = bench.job(job)
                used += said.state != "FAILED" or not said.error or "\n" in said.error
        bench.wait(train(bench, base_id, dataset_id), "SUCCEEDED", 120)
    finally:
        bench.end()
    figures.record(flips=ROUNDS - ROUNDS // 2, cuts=ROUNDS // 2, jobs=ROUNDS + 1, damaged_files_used=used)
    assert used == 0


@contextmanager
def cut(path: Path, chance: random.Random) -> Iterator[None]:
    """Some of the last rows gone, the others whole."""
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: chance.randrange(1, len(lines))]))
    try:
        yield
    finally:
        path.write_bytes(whole)


def answers(bench: Bench, base_id: str, folder: Path) -> tuple[str, Path]:
    """A dataset that was generated as any is, and its shard."""
    file = folder / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Tell me about number {n} and foxes."}) + "\n" for n in range(24)))
    prompts = submit(ImportPrompts(path=str(file)), name="prompts", settings=bench.settings)
    wanted = GenerateData(prompts.request["dataset_id"], base_id=base_id, max_tokens=24, batch_size=8)
    made = submit(wanted, name="answers", settings=bench.settings)
    bench.wait(made.id, "SUCCEEDED", 180)
    with db.reading(bench.settings) as session:
        found = Path(session.get_one(Dataset, made.request["dataset_id"]).path)
    folder = found if found.is_absolute() else bench.settings.home / found
    return made.request["dataset_id"], next(folder.glob("shard-*.jsonl"))


def train(bench: Bench, base_id: str, dataset_id: str) -> str:
    settings = {**SETTINGS, "max_steps": 4}
    return submit(Train("medusa", base_id, dataset_id, settings), settings=bench.settings).id


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_bits_flipped_in_states(home: Settings, broker: str, tiny_base: Path, figures: Figures) -> None:
    """The newest state, while no one trains; every second time it is cut short. The weights are those of an
    undisturbed training, from an older state or from the beginning."""
    bench = Bench(replace(home, redis_url=f"{broker}?virtual_host=9"), SPECULOOS_WORK_MODULES="")
    base_id = homes.add_base(bench.settings, tiny_base)
    dataset_id = homes.add_answers(bench.settings, base_id)
    trainings = Trainings(bench.settings, base_id, dataset_id, steps=600, save_every=50)
    chance = random.Random(41)
    try:
        worker = bench.worker("gpu")
        trainings.next()
        trainings.ended()
        for number in range(ROUNDS):
            trainings.next()
            bench.wait_for(trainings.ids[-1], lambda job: job.done >= 120, "two states", 120)
            worker.terminate()
            assert worker.wait(30) == 0
            assert trainings.current().state == "INTERRUPTED"
            spoil(bench, chance, truncate if number % 2 else flip)
            worker = bench.worker("gpu")
            trainings.ended()
    finally:
        bench.end()
    different = len(set(trainings.weights())) - 1
    figures.record(flips=ROUNDS, jobs=len(trainings.ids), lost=0, doubled=0, different_weights=different)
    assert different == 0


def spoil(bench: Bench, chance: random.Random, how: Callable[[Path, random.Random], None]) -> None:
    """Damage one file of the newest state there is."""
    states = sorted((bench.settings.home / "checkpoints").rglob("state-*"), key=lambda path: path.stat().st_mtime)
    newest = [path for path in states if path.is_dir() and not path.name.startswith(".")][-1]
    how(chance.choice(sorted(path for path in newest.iterdir() if path.is_file())), chance)


def flip(path: Path, chance: random.Random) -> None:
    changed = bytearray(path.read_bytes())
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    path.write_bytes(changed)


def truncate(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.truncate(chance.randrange(path.stat().st_size))
