"""Two machines: separate homes, one database, one broker, one store."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from models.identity import weights_sha256
from models.starter import installed
from tests.tiny import make_tiny_base
from tests.workers.conftest import Bench
from tracking import db, stored
from tracking.stored import RowFiles
from tracking.tables import Base, Dataset, Job, new_id
from workers.jobs.requests import GenerateData, ImportPrompts, Train
from workers.jobs.submit import submit

TRAINING = {"epochs": 0.0, "max_steps": 12, "batch_tokens": 256, "max_length": 64, "base_dtype": "float32"}


def second(bench: Bench, home: Path, **environment: str) -> Bench:
    """Another machine with the same database, broker and store."""
    return Bench(replace(bench.settings, home=home), forked=bench.forked, **environment)


def tiny(bench: Bench) -> str:
    """Add a base that only this machine has; return its id."""
    base_id = new_id()
    folder = make_tiny_base(bench.settings.home / "models" / base_id)
    with db.writing(bench.settings) as session:
        values = {"source": "gguf", "location": "x", "path": str(folder), "state": "ready"}
        session.add(Base(id=base_id, name="tiny", weights_sha256=weights_sha256(folder), **values))
    return base_id


def upload(bench: Bench, texts: Sequence[str]) -> ImportPrompts:
    """A prompt file in this machine's uploads, where the pages put it."""
    file = bench.settings.home / "uploads" / "ab" / "texts.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    return ImportPrompts(path=str(file), original_name="texts.jsonl", delete_after=True)


def prompts(bench: Bench, texts: Sequence[str]) -> str:
    """Import these texts as a prompt set; return its id."""
    job = submit(upload(bench, texts), settings=bench.settings)
    bench.wait(job.id, "SUCCEEDED")
    return job.request["dataset_id"]


def generation(bench: Bench, base_id: str, source_id: str, rows: int, **changes: object) -> Job:
    """Submit a generation with the tiny base in shards of `rows` rows."""
    options = {"max_tokens": 12, "batch_size": 4, "temperature": 0.8, **changes}
    return submit(
        GenerateData(source_id=source_id, base_id=base_id, shard_rows=rows, **options), settings=bench.settings
    )


def training(bench: Bench, base_id: str, dataset_id: str, **changes: object) -> Job:
    """Submit a short training of heads."""
    settings = {**TRAINING, **changes}
    request = Train(method="medusa", base_id=base_id, dataset_id=dataset_id, settings=settings)
    return submit(request, name="heads", settings=bench.settings)


def files(bench: Bench) -> RowFiles:
    """The files of rows on this machine."""
    return RowFiles(bench.settings, installed)


def row(bench: Bench, table: type, row_id: str) -> Dataset:
    with db.reading(bench.settings) as session:
        return session.get_one(table, row_id)


def is_here(bench: Bench, table: type, row_id: str) -> bool:
    """Whether this machine has a row's files."""
    with db.reading(bench.settings) as session:
        return files(bench).is_local(session.get_one(table, row_id), stored.stored_entry(session, row_id))
