"""Generation through an endpoint, against a real HTTP process that fails every third request (issue 2, line 4)."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from corpus.conversations import GenerateOptions
from corpus.generate_remote import generate_remote
from corpus.importing import import_prompts
from corpus.shards import read_rows, read_summary
from speculoos.errors import Cancelled, Unavailable
from speculoos.reporting import SilentReporter
from speculoos.settings import Endpoint
from tests.tools.local_server import server_process
from tests.tools.loops import run_async

pytestmark = pytest.mark.integration

SERVER = "tests.corpus.flaky_server"
KEY = "sesame-4711"


class RecordingReporter(SilentReporter):
    """Records log messages; requests a stop once `stop_after` rows are done."""

    def __init__(self, stop_after: int | None = None):
        self.lines: list[str] = []
        self.done = 0
        self.stop_after = stop_after

    def log(self, message: str, level: str = "info") -> None:
        self.lines.append(message)

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        self.done = done

    def stop_requested(self) -> bool:
        return self.stop_after is not None and self.done >= self.stop_after


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """URL of a fresh flaky server in its own process."""
    with server_process(SERVER, tmp_path / "port") as url:
        yield f"{url}/v1"


@pytest.fixture
def endpoint(server: str, monkeypatch: pytest.MonkeyPatch) -> Endpoint:
    monkeypatch.setenv("FLAKY_KEY", KEY)
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.05)
    return Endpoint("flaky", server, key_env="FLAKY_KEY", model="echo", concurrency=6, timeout=10, retries=30)


def prompt_set(folder: Path, prompts: list[str]) -> Path:
    source = folder / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts))
    import_prompts(source, folder / "prompts", SilentReporter())
    return folder / "prompts"


def test_all_rows_arrive_once_from_a_server_that_fails_every_third_request(endpoint: Endpoint, tmp_path: Path) -> None:
    prompts = [f"number {i}" for i in range(40)]
    reporter = RecordingReporter()
    report = generate_remote(endpoint, "", prompt_set(tmp_path, prompts), tmp_path / "out", GenerateOptions(), reporter)
    rows = list(read_rows(tmp_path / "out"))
    assert sorted(r["messages"][-1]["content"] for r in rows) == sorted(f"you said: {p}" for p in prompts)
    assert len({r["id"] for r in rows}) == 40 == report["rows"]
    assert report["failed"] == [] and report["retries"] >= 13 and report["tokens"] == 120
    counts = json.load(urllib.request.urlopen(endpoint.url))
    assert counts["answers"] == 40, "an answered row was asked for again"
    assert not any(KEY in line for line in reporter.lines)


def test_turns_are_asked_one_after_the_other(endpoint: Endpoint, tmp_path: Path) -> None:
    source = tmp_path / "q.jsonl"
    source.write_text(json.dumps({"turns": ["first", "second"], "category": "x"}) + "\n")
    import_prompts(source, tmp_path / "prompts", SilentReporter())
    options = GenerateOptions(system_prompt="be kind")
    generate_remote(endpoint, "", tmp_path / "prompts", tmp_path / "out", options, SilentReporter())
    (row,) = read_rows(tmp_path / "out")
    assert [(m["role"], m["content"]) for m in row["messages"]] == [
        ("system", "be kind"),
        ("user", "first"),
        ("assistant", "you said: first"),
        ("user", "second"),
        ("assistant", "you said: second"),
    ]
    assert row["finish"] == ["stop", "stop"] and row["category"] == "x"


def test_a_refused_row_is_reported_and_the_rest_arrives(endpoint: Endpoint, tmp_path: Path) -> None:
    folder = prompt_set(tmp_path, ["a", "refuse me", "b"])
    report = generate_remote(endpoint, "", folder, tmp_path / "out", GenerateOptions(), SilentReporter())
    assert report["rows"] == 2
    assert report["failed"] == [{"id": "line-0000002", "reason": "400 this prompt is not allowed"}]


def test_stopping_keeps_what_is_finished_and_the_next_call_makes_only_the_rest(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.generate_remote.WATCH_SECONDS", 0.01)
    folder = prompt_set(tmp_path, [f"number {i}" for i in range(60)])
    with pytest.raises(Cancelled):
        generate_remote(endpoint, "", folder, tmp_path / "out", GenerateOptions(), RecordingReporter(stop_after=5))
    before = [row["id"] for row in read_rows(tmp_path / "out")]
    assert 5 <= len(before) < 60 and read_summary(tmp_path / "out") == {}
    report = generate_remote(endpoint, "", folder, tmp_path / "out", GenerateOptions(), SilentReporter())
    after = [row["id"] for row in read_rows(tmp_path / "out")]
    assert report["rows"] == 60 == len(set(after)) == len(after)
    assert after[: len(before)] == before


def test_it_works_in_a_notebook_whose_event_loop_runs(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("corpus.generate_remote.WATCH_SECONDS", 0.01)
    folder = prompt_set(tmp_path, [f"number {i}" for i in range(30)])

    async def cell(reporter: RecordingReporter) -> dict:
        return generate_remote(endpoint, "", folder, tmp_path / "out", GenerateOptions(), reporter)

    with pytest.raises(Cancelled):
        run_async(cell(RecordingReporter(stop_after=5)))
    assert 5 <= len(list(read_rows(tmp_path / "out"))) < 30
    assert run_async(cell(RecordingReporter()))["rows"] == 30


def test_a_wrong_key_ends_the_run_with_one_sentence_without_the_key(
    endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLAKY_KEY", "wrong-0815")
    reporter = RecordingReporter()
    with pytest.raises(Unavailable) as caught:
        generate_remote(endpoint, "", prompt_set(tmp_path, ["a"]), tmp_path / "out", GenerateOptions(), reporter)
    assert "'flaky' refuses: 401" in str(caught.value)
    assert "wrong-0815" not in str(caught.value) + "".join(reporter.lines)


def test_an_endpoint_that_is_gone_is_given_up_after_its_retries(tmp_path: Path) -> None:
    gone = Endpoint("gone", "http://127.0.0.1:9/v1", model="m", concurrency=2, retries=0)
    folder = prompt_set(tmp_path, [f"{i}" for i in range(30)])
    with pytest.raises(Unavailable, match="8 rows in a row failed, the last with: no connection"):
        generate_remote(gone, "", folder, tmp_path / "out", GenerateOptions(), SilentReporter())
