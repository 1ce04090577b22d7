"""Generation options: temperatures, system prompts, rows left out, rate limits; and stable shard keys."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from corpus.conversations import GenerateOptions, make_conversation_from_row, to_answer
from corpus.endpoints import EndpointPool
from corpus.generate_local import generate_local
from corpus.generate_remote import generate_remote
from corpus.importing import import_prompts
from corpus.sharding import plan_shards
from corpus.shards import read_rows
from models.base import load_base, load_tokenizer
from speculoos.errors import BadInput
from speculoos.reporting import SilentReporter
from speculoos.settings import Endpoint
from tests.corpus.labelling_server import LabellingServer
from workers.jobs.requests import GenerateData, from_json

MIX = (0.0, 0.3, 0.7)
SYSTEM = [{"role": "system", "content": "own"}, {"role": "user", "content": "fox"}]


class RecordingReporter(SilentReporter):
    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self.samples: list[tuple[int, dict[str, Any]]] = []

    def metrics(self, step: int, values: dict[str, float]) -> None:
        self.now |= values

    def sample(self, step: int, record: dict[str, Any]) -> None:
        self.samples.append((step, record))


def prompt_set(folder: Path, rows: list[Any]) -> Path:
    file = folder / "in.jsonl"
    file.write_text("".join(json.dumps(row if isinstance(row, dict) else {"prompt": row}) + "\n" for row in rows))
    import_prompts(file, folder / "prompts", SilentReporter())
    return folder / "prompts"


def generate(
    server: LabellingServer, source: Path, out: Path, reporter: SilentReporter | None = None, **options: Any
) -> dict:
    endpoint = Endpoint("it", server.url, model="m", concurrency=2, retries=0)
    return generate_remote(endpoint, "", source, out, GenerateOptions(**options), reporter or SilentReporter())


def test_temperatures_are_spread_over_prompts_and_each_sample_has_another() -> None:
    options = GenerateOptions(temperatures=MIX, samples=3)
    ids = [f"line-{n:07d}" for n in range(600)]
    counts = [sum(options.temperature_of(i) == t for i in ids) for t in MIX]
    assert all(150 < count < 250 for count in counts)
    for row_id in ids[:20]:
        assert {options.temperature_of(i) for i in (row_id, f"{row_id}#1", f"{row_id}#2")} == set(MIX)
    assert GenerateOptions(temperature=0.5).temperature_of("x") == 0.5


def test_an_endpoint_is_asked_with_each_rows_own_temperature(tiny_base: Path, tmp_path: Path) -> None:
    source = prompt_set(tmp_path, [f"fox {n}" for n in range(12)])
    with LabellingServer(load_tokenizer(tiny_base), "vllm") as server:
        generate(server, source, tmp_path / "out", temperatures=MIX)
        requests = {body["messages"][-1]["content"]: body for body in server.bodies}
    options = GenerateOptions(temperatures=MIX)
    expected = {row.users[0]: options.temperature_of(row.id) for row in to_answer(source, options, set())}
    assert {text: body["temperature"] for text, body in requests.items()} == expected and len(
        set(expected.values())
    ) == 3
    assert all(("seed" in body) == (body["temperature"] > 0) for body in requests.values())


def test_the_base_answers_each_row_at_its_temperature_whatever_is_beside_it(tiny_base: Path, tmp_path: Path) -> None:
    source = prompt_set(tmp_path, [f"the fox {n}" for n in range(9)])
    mixed = GenerateOptions(temperatures=(0.0, 3.0), max_tokens=8, batch_size=4)
    generate_local(load_base(tiny_base), source, tmp_path / "mixed", mixed, SilentReporter())
    for temperature in mixed.temperatures:
        alone = GenerateOptions(temperature=temperature, max_tokens=8, batch_size=2)
        generate_local(load_base(tiny_base), source, tmp_path / f"{temperature}", alone, SilentReporter())
    by_temperature = {
        t: {row["id"]: row["token_ids"] for row in read_rows(tmp_path / f"{t}")} for t in mixed.temperatures
    }
    rows = list(read_rows(tmp_path / "mixed"))
    assert len(rows) == 9 and all(
        row["token_ids"] == by_temperature[mixed.temperature_of(row["id"])][row["id"]] for row in rows
    )
    assert by_temperature[0.0] != by_temperature[3.0]


@pytest.mark.parametrize(
    ("prompt", "replace", "system"),
    [("", False, "own"), ("new", False, "own"), ("new", True, "new"), ("", True, "")],
)
def test_system_prompts_are_kept_injected_or_replaced(prompt: str, replace: bool, system: str) -> None:
    assert make_conversation_from_row({"id": "a", "messages": SYSTEM}, prompt, replace).system == system
    assert make_conversation_from_row({"id": "a", "messages": SYSTEM[1:]}, prompt, replace).system == prompt


def test_what_is_cut_or_empty_is_left_out_and_counted(tiny_base: Path, tmp_path: Path) -> None:
    source = prompt_set(tmp_path, ["nothing", "fox", "the quick brown fox jumps over the lazy dog", "nothing more"])
    reporter = RecordingReporter()
    with LabellingServer(load_tokenizer(tiny_base), "vllm") as server:
        report = generate(server, source, tmp_path / "out", reporter, drop_cut=True, max_tokens=12)
        with_cut = generate(server, source, tmp_path / "kept", max_tokens=12)
    assert [row["messages"][-1]["content"] for row in read_rows(tmp_path / "out")] == ["you said: fox"]
    assert report["left_out"] == {"empty": 2, "cut": 1} and report["rows"] == 1 and len(report["failed"]) == 3
    assert with_cut["left_out"] == {"empty": 2} and with_cut["rows"] == 2
    assert reporter.now["now/left_out/empty"] == 2 and reporter.now["now/rows"] == 1
    dropped = [record for step, record in reporter.samples if step == 1]
    assert sorted(record["kind"] for record in dropped) == ["cut", "empty", "empty"]
    (sample,) = [record for step, record in reporter.samples if step == 0]
    assert (sample["prompt"], sample["text"], sample["finish"]) == ("fox", "you said: fox", "stop")


def test_the_local_base_leaves_cut_answers_out_too(tiny_base: Path, tmp_path: Path) -> None:
    source = prompt_set(tmp_path, [f"the fox {n}" for n in range(6)])
    base, options = load_base(tiny_base), {"max_tokens": 6, "batch_size": 3}
    whole = generate_local(base, source, tmp_path / "all", GenerateOptions(**options), SilentReporter())
    report = generate_local(base, source, tmp_path / "out", GenerateOptions(**options, drop_cut=True), SilentReporter())
    assert whole["finish"].get("length", 0) == report["left_out"].get("cut", 0) > 0
    assert report["rows"] == whole["rows"] - report["left_out"]["cut"]


def test_keys_of_shards_change_with_what_changes_answers_and_stay_as_they_were_otherwise(tmp_path: Path) -> None:
    source = prompt_set(tmp_path, ["a", "b", "c"])

    def key(**options: Any) -> str:
        return plan_shards(source, GenerateOptions(**options), 10, endpoint="it", model="m")[0].key

    assert key() == OLD_KEY, "shards that an earlier version made are still known"
    assert key(temperatures=()) == key(api="chat") == OLD_KEY
    others = [{"temperatures": MIX}, {"replace_system": True}, {"api": "completions"}, {"drop_cut": True}]
    assert len({key(), *(key(**option) for option in others)}) == 5


OLD_KEY = "fa715078f0dda4e97edf69bd"


def test_a_rate_is_kept_for_each_server(tiny_base: Path, tmp_path: Path) -> None:
    source = prompt_set(tmp_path, [f"fox {n}" for n in range(8)])
    with LabellingServer(load_tokenizer(tiny_base), "vllm") as server:
        endpoint = Endpoint("slow", server.url, model="m", concurrency=8, requests_per_minute=1200)
        began = time.monotonic()
        generate_remote(endpoint, "", source, tmp_path / "out", GenerateOptions(), SilentReporter())
    assert time.monotonic() - began >= 7 * 60 / 1200


def test_a_rate_spaces_requests_by_the_clock() -> None:
    pool = EndpointPool(
        [Endpoint("slow", "http://x/v1", model="m", concurrency=9, requests_per_minute=60)], clock=lambda: 100.0
    )
    (server,) = pool.servers
    server.started(100.0)
    assert not server.can_accept(100.9) and server.can_accept(101.0)
    server.started(101.0)
    assert not server.can_accept(101.9) and server.can_accept(102.0) and 0 < pool._wait_time(101.9) < 0.11


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"temperatures": (0.0, 0.5), "temperature": 0.3}, "one temperature or several"),
        ({"temperatures": (0.0, 0.0), "samples": 2}, "temperatures above 0"),
        ({"temperatures": (0.0, 0.7), "samples": 3}, "temperatures above 0"),
        ({"samples": 2}, "temperatures above 0"),
        ({"api": "batch"}, "expected one of chat, completions"),
        ({"api": "completions"}, "Plain completions need an endpoint"),
        ({"base_id": "", "endpoint": "e", "api": "completions"}, "Plain completions need an endpoint"),
    ],
)
def test_conflicting_options_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        (GenerateData(**{"source_id": "s", "base_id": "b", **fields})).check_options()


def test_a_stored_request_reads_back_equal() -> None:
    request = GenerateData(source_id="s", base_id="b", temperatures=MIX, samples=3)
    (request).check_options()
    assert from_json("generate_data", json.loads(json.dumps(request.to_json()))) == request
