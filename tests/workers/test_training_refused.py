"""A training that cannot run is refused or fails with one message that says what to change."""

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from app.pages.jobs import head
from cli.commands.train import make_request
from corpus.conversations import GenerateOptions
from corpus.generate_local import generate_local
from corpus.importing import import_prompts
from models.base import load_base
from models.checkpoints import read_config
from speculoos.errors import BadInput, Unsupported
from speculoos.reporting import SilentReporter
from speculoos.settings import Settings, load
from tests.models import hostile
from tests.tiny import make_tiny_base, tiny_tokenizer
from tests.tools.damage import flip
from tests.tools.databases import migrate
from tests.tools.homes import add_answers, add_base
from tests.workers.conftest import Bench
from tests.workers.test_bodies import write_prompts
from tracking import db
from tracking.tables import Checkpoint, Dataset, Job
from workers.jobs.requests import Train
from workers.jobs.submit import retry, submit

pytestmark = pytest.mark.integration

FORKED = True
SETTINGS = {"epochs": 0.0, "max_steps": 4, "eval_every": 2, "save_every": 0, "max_length": 64, "samples": 0}


def train(settings: Settings, base_id: str, dataset_id: str, method: str = "medusa", **changes: Any) -> Job:
    request = Train(method=method, base_id=base_id, dataset_id=dataset_id, settings={**SETTINGS, **changes})
    return submit(request, settings=settings)


def error_text(bench: Bench, job: Job) -> str:
    """The text at the top of a FAILED job's page, beginning with its error."""
    bench.wait(job.id, "FAILED")
    with db.reading(bench.settings) as session:
        row = session.get_one(Job, job.id)
        assert session.get_one(Checkpoint, row.request["checkpoint_id"]).state == "failed"
        text = html.unescape(re.sub(r"<[^>]+>", " ", head(session, row)))
    assert "Traceback" not in text and "unexpected" not in text.lower()
    return " ".join(text.partition("×")[2].split())


@pytest.fixture(scope="module")
def workbench(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A home with a worker that trains."""
    home = {"SPECULOOS_HOME": str(tmp_path_factory.mktemp("refusing") / "home")}
    settings = replace(load(home), redis_url=f"{broker}?virtual_host=2")
    migrate(settings)
    bench = Bench(settings, forked=True)
    bench.worker("gpu")
    yield bench
    bench.end()


def test_data_of_another_tokenizer(workbench: Bench, tiny_base: Path, tmp_path: Path) -> None:
    folder = workbench.settings.home / "datasets" / "hers"
    import_prompts(write_prompts(tmp_path / "p.jsonl", 4), tmp_path / "prompts", SilentReporter())
    generate_local(load_base(tiny_base), tmp_path / "prompts", folder, GenerateOptions(max_tokens=8), SilentReporter())
    data_id = add_row(workbench, Dataset(name="hers", kind="conversations", path=str(folder), rows=4, state="ready"))
    other = make_tiny_base(tmp_path / "other")
    tiny_tokenizer(300).save_pretrained(other)
    base_id = add_base(workbench.settings, other, "other")
    with pytest.raises(BadInput, match="The dataset “hers” was tokenized with another tokenizer than that of “other”"):
        train(workbench.settings, base_id, data_id)
    with db.reading(workbench.settings) as session:
        assert session.scalar(select(func.count()).select_from(Checkpoint)) == 0, "a refused training left a row"


def test_data_and_bases_that_are_damaged(workbench: Bench, tiny_base: Path, tmp_path: Path) -> None:
    folder = hostile.copy(tiny_base, tmp_path / "base")
    base_id = add_base(workbench.settings, folder, "damaged")
    data_id = add_answers(workbench.settings, base_id, "cut", rows=60)
    shard = workbench.settings.home / "datasets" / data_id / "shard-00000.jsonl"
    whole = shard.read_text()
    shard.write_text("".join(whole.splitlines(keepends=True)[:10]))
    text = error_text(workbench, train(workbench.settings, base_id, data_id))
    assert "dataset.json counts 60 rows, the shards hold 10. Create the dataset again" in text
    shard.write_text(whole)
    flip(folder / "model.safetensors")
    text = error_text(workbench, train(workbench.settings, base_id, data_id))
    assert "the weights changed: its sha256 differs from the added model's. Restore the original files" in text


def test_sequences_longer_than_the_context(workbench: Bench, tiny_base: Path) -> None:
    """A typed length is refused at submit; that of a recipe and the default are reduced to the base's."""
    settings = workbench.settings
    base_id = add_base(settings, tiny_base, "short")
    data_id = add_answers(settings, base_id, "long")
    typed = make_request("medusa-paper", base_id, [data_id], {"max_length": 4096})
    with db.reading(settings) as session:
        before = session.scalar(select(func.count()).select_from(Checkpoint))
        with pytest.raises(BadInput, match="max_length: this base takes at most 512 tokens, got 4096") as error:
            submit(typed, settings=settings)
        assert error.value.hint.startswith("Set max_length to 512 or less")
        assert session.scalar(select(func.count()).select_from(Checkpoint)) == before
    few = {name: value for name, value in SETTINGS.items() if name != "max_length"}
    few |= {"batch_tokens": 256, "medusa_num_heads": 1}
    request = make_request("medusa-paper", base_id, [data_id], few)
    assert request.config.max_length == 2048 and "max_length" not in request.settings
    job = submit(request, settings=settings)
    workbench.wait(job.id, "SUCCEEDED")
    with db.reading(settings) as session:
        checkpoint = session.get_one(Checkpoint, job.request["checkpoint_id"])
        assert read_config(Path(checkpoint.path))["training"]["settings"]["max_length"] == 512


@pytest.mark.parametrize(
    "family, sizes, message",
    [
        ("bert", {}, r"EAGLE-3 cannot be trained for “bert”: bert attends to later .*\. Choose another base model; .*"),
        (
            "mamba",
            {"state_size": 8, "conv_kernel": 4},
            r"EAGLE-3 cannot be trained for “mamba”: mamba keeps a recurrent state, .*\. Choose another base model; .*",
        ),
    ],
)
def test_a_method_the_base_cannot_take(
    workbench: Bench, tmp_path: Path, family: str, sizes: dict, message: str
) -> None:
    base_id = add_base(workbench.settings, make_tiny_base(tmp_path / family, family, **sizes), family)
    data_id = add_answers(workbench.settings, base_id, f"of {family}")
    with pytest.raises(Unsupported) as error:
        train(workbench.settings, base_id, data_id, "eagle3")
    assert re.fullmatch(message, f"{error.value} {error.value.hint}")


def test_no_memory(bench: Bench, tmp_path: Path) -> None:
    """The child gets little memory beyond its libraries. The next, smaller training works."""
    wide = make_tiny_base(tmp_path / "wide", hidden_size=256, intermediate_size=64, vocab_size=20_000)
    base_id = add_base(bench.settings, wide, "wide")
    data_id = add_answers(bench.settings, base_id)
    bench.environment["SPECULOOS_WORK_MODULES"] += ",tests.workers.little_memory"
    bench.worker("gpu")
    job = train(bench.settings, base_id, data_id, medusa_num_heads=16, held_out=0.0)
    small = train(bench.settings, base_id, data_id, medusa_num_heads=1, held_out=0.0, batch_tokens=128)
    assert error_text(bench, job) == (
        "Training ran out of memory. "
        "Lower batch_tokens, max_length or cache_features_mb, or choose base_dtype bfloat16."
    )
    assert (bench.job(job.id).error_code, bench.job(job.id).attempt) == ("out_of_memory", 1)
    assert bench.wait(small.id, "SUCCEEDED").done == 4


def test_a_full_disk_that_holds_the_database_too(broker: str, small_disk: Path, tmp_path: Path) -> None:
    """The draft does not fit; its partial files are removed, so the row can be written. A retry with space works."""
    settings = replace(load({"SPECULOOS_HOME": str(small_disk / "home")}), redis_url=f"{broker}?virtual_host=3")
    db.upgrade(settings)
    base_id = add_base(settings, make_tiny_base(tmp_path / "wide", hidden_size=256, intermediate_size=64), "wide")
    dataset_id = add_answers(settings, base_id)
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"0" * (27 * 2**19))
    bench = Bench(settings, forked=True)
    try:
        bench.worker("gpu")
        job = train(settings, base_id, dataset_id)
        assert error_text(bench, job) == (
            "Training stopped because the disk is full. "
            "Free some disk space, then retry: training resumes from the last saved state. Free up space"
        )
        assert not list((settings.home / "checkpoints").rglob("*.safetensors"))
        ballast.unlink()
        retry(job.id, settings)
        assert bench.wait(job.id, "SUCCEEDED").done == 4
    finally:
        bench.end()


def add_row(bench: Bench, row: Any) -> str:
    with db.writing(bench.settings) as session:
        session.add(row)
        session.flush()
        return row.id
