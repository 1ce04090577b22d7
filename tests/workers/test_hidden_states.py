"""A training that names a server of hidden states: its checks at submit, and the whole job."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from models.identity import tokenizer_sha256, weights_sha256
from speculoos.errors import BadInput
from speculoos.redaction import known_secrets, redact
from speculoos.settings import Settings
from tests.tools.state_server import StateProcess
from tracking import db, jobs, leases
from tracking.reports import last_metrics
from tracking.tables import Base, Checkpoint, Dataset, Job, JobLog
from workers.child.context import JobContext
from workers.child.work import train
from workers.jobs.requests import Train
from workers.jobs.submit import submit
from workers.timing import JobTiming

pytestmark = pytest.mark.integration

CARD = {"vocabulary": 320, "hidden_size": 32}
FEW = {"max_steps": 4, "epochs": 0, "eval_every": 2, "samples": 1, "max_length": 128, "batch_tokens": 128}


@pytest.fixture(scope="module")
def served(tiny_base: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StateProcess]:
    with StateProcess(tiny_base, tmp_path_factory.mktemp("home"), token="sesame-open") as process:
        yield process


@pytest.fixture
def offline(home: Settings, served: StateProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home without a broker whose settings name a server."""
    monkeypatch.setenv("MINE", "sesame-open")
    servers = {"here": served.server(key_env="MINE")}
    return replace(home, redis_url=f"redis+socket://{tmp_path}/none.sock", state_servers=servers)


@pytest.fixture
def ids(offline: Settings, tiny_base: Path, tmp_path: Path) -> dict[str, str]:
    """Ids of the tiny base and of a few conversations."""
    folder = tmp_path / "answers"
    folder.mkdir()
    rows = [
        {"id": str(n), "messages": [], "token_ids": [*range(5 + n, 45 + n)], "loss_spans": [[10, 40]]}
        for n in range(12)
    ]
    (folder / "shard-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "dataset.json").write_text(json.dumps({"kind": "conversations", "rows": len(rows)}))
    sums = {"weights_sha256": weights_sha256(tiny_base), "tokenizer_sha256": tokenizer_sha256(tiny_base)}
    with db.writing(offline) as session:
        base = Base(name="tiny", source="folder", location="/x", path=str(tiny_base), state="ready", card=CARD, **sums)
        data = Dataset(name="answers", kind="conversations", path=str(folder), state="ready", rows=len(rows))
        session.add_all([base, data])
        session.flush()
        return {row.name: row.id for row in (base, data)}


def request(ids: dict[str, str], base: str = "tiny", **settings: Any) -> Train:
    return Train(method="medusa", base_id=ids[base], dataset_id=ids["answers"], settings={**FEW, **settings})


def test_an_unknown_server_is_refused_at_submit(offline: Settings, ids: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="no server named 'nobody' in settings.toml; known are: here"):
        submit(request(ids, hidden_states="nobody"), settings=offline)
    with db.reading(offline) as session:
        assert session.query(Job).count() == 0, "a refused request leaves nothing"


def test_a_job_trains_from_a_server_and_the_next_from_the_stored_states_alone(
    offline: Settings, ids: dict[str, str]
) -> None:
    for name, source in (("first", "here"), ("second", "stored")):
        job = submit(request(ids, hidden_states=source, hidden_states_store="kept"), name=name, settings=offline)
        with db.writing(offline) as session:
            attempt = jobs.claim(session, job.id, "test", 60)
        context = JobContext(offline, job.id, attempt, JobTiming())
        result = train.run(Train(**job.request), context)
        context.flush()
        with db.writing(offline) as session:
            jobs.succeed(session, job.id, attempt, result)
            leases.release(session, f"job:{context.job_id}")  # as its supervisor does
        with db.reading(offline) as session:
            row = session.get_one(Checkpoint, job.request["checkpoint_id"])
            messages = [line.message for line in session.query(JobLog).filter_by(job_id=job.id)]
            assert row.state == "ready" and result["step"] == 4 and row.figures["mean_accepted_length"] >= 1
            assert "tuning" not in row.figures
            assert "The tree was not tuned: this training does not load the base model." in messages
            assert last_metrics(session, job.id)["train/loss"] > 0
            stored = json.dumps([job.request, row.config, messages, row.figures], default=str)
        assert "sesame" not in stored and "127.0.0.1" not in stored
    assert list((offline.home / "hidden-states" / "kept").rglob("*.safetensors"))


def test_the_token_is_hidden_wherever_text_is_written(offline: Settings) -> None:
    secrets = known_secrets(replace(offline, features_token="sesame-server"))
    assert redact("got sesame-open and sesame-server", secrets) == "got ••• and •••"
