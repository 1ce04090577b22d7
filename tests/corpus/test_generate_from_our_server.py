"""Data generated through the openai client against the project's own inference server (issue 2, line 4)."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from corpus.conversations import GenerateOptions
from corpus.generate_local import generate_local
from corpus.generate_remote import generate_remote
from corpus.importing import import_prompts
from corpus.labels import ServedBase
from corpus.shards import read_rows
from models.base import load_base
from models.identity import weights_sha256
from speculoos.reporting import SilentReporter
from speculoos.settings import Settings, load
from tests.tools import zygote
from tests.tools.homes import skip_speed_probe
from tests.tools.ports import free_ports
from tracking.db import writing
from tracking.tables import Base

pytestmark = pytest.mark.integration

PROMPTS = [f"the quick brown fox {i}" for i in range(12)]


@pytest.fixture
def settings(home: Settings, tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A home with the tiny base and an endpoint `ours` in settings.toml, whose key is the inference token."""
    (port,) = free_ports(1)
    monkeypatch.setenv("SPECULOOS_INFERENCE_PORT", str(port))
    monkeypatch.setenv("SPECULOOS_INFERENCE_TOKEN", "inference-0815")
    monkeypatch.setenv("OURS_KEY", "inference-0815")
    lines = ("[endpoints.ours]", f'url = "http://127.0.0.1:{port}/v1"', 'key_env = "OURS_KEY"', "concurrency = 4")
    (home.home / "settings.toml").write_text("\n".join(lines) + "\n")
    skip_speed_probe(home.home)
    with writing(home) as session:
        sha256 = weights_sha256(tiny_base)
        fields = {"source": "folder", "location": "x", "path": str(tiny_base), "state": "ready"}
        session.add(Base(name="tiny", weights_sha256=sha256, **fields))
    return load()


@pytest.fixture
def server(settings: Settings) -> Iterator[None]:
    """The inference server as `up` starts it."""
    env = {**os.environ, "SPECULOOS_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(zygote.CLONE)}
    process = zygote.begin("serving.main", [], env)
    try:
        end = time.monotonic() + 180
        while not _answers(settings):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def _answers(settings: Settings) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{settings.inference_port}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_our_server_gives_every_row_once_with_the_bases_own_greedy_answers(
    settings: Settings, server: None, tiny_base: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    turns = [{"turns": [p, "and then?"]} for p in PROMPTS]
    source.write_text("".join(json.dumps(t) + "\n" for t in turns))
    import_prompts(source, tmp_path / "prompts", SilentReporter())
    options = GenerateOptions(max_tokens=16)
    endpoint = settings.endpoints["ours"]
    report = generate_remote(endpoint, "tiny", tmp_path / "prompts", tmp_path / "remote", options, SilentReporter())
    generate_local(load_base(tiny_base), tmp_path / "prompts", tmp_path / "local", options, SilentReporter())
    remote = {row["id"]: row["messages"] for row in read_rows(tmp_path / "remote")}
    local = {row["id"]: row["messages"] for row in read_rows(tmp_path / "local")}
    assert report["rows"] == len(remote) == len(PROMPTS) and report["failed"] == []
    first_turns = {i: m[:2] for i, m in remote.items()}
    assert first_turns == {i: m[:2] for i, m in local.items()}
    assert all([m["role"] for m in rows] == ["user", "assistant"] * 2 for rows in remote.values())


def test_our_servers_token_ids_are_the_exact_labels_of_the_base_itself(
    settings: Settings, server: None, tiny_base: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in PROMPTS))
    import_prompts(source, tmp_path / "prompts", SilentReporter())
    base, options = load_base(tiny_base), GenerateOptions(max_tokens=16)
    served = ServedBase(base.tokenizer, base.eos_ids, "b", "t")
    arguments = (tmp_path / "prompts", tmp_path / "remote", options, SilentReporter(), served)
    report = generate_remote(settings.endpoints["ours"], "tiny", *arguments)
    generate_local(base, tmp_path / "prompts", tmp_path / "local", options, SilentReporter())
    remote, local = ({row["id"]: row for row in read_rows(tmp_path / name)} for name in ("remote", "local"))
    assert report["labels"] == {"exact": report["rows"]} and report["rows"] >= 10
    keys = ("token_ids", "loss_spans", "messages", "finish")
    assert {i: [row[k] for k in keys] for i, row in remote.items()} == {
        i: [row[k] for k in keys] for i, row in local.items() if i in remote
    }
