"""Shards of a generation: what their keys depend on, how they are stored and assembled. No model, no server."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from corpus.conversations import GenerateOptions, to_answer
from corpus.importing import import_prompts
from corpus.sharding import (
    ShardFolder,
    ShardPart,
    add_unfinished,
    assemble,
    finished_reports,
    plan_shards,
    store_shard,
    total_report,
)
from corpus.shards import ShardWriter, read_rows, shard_files, write_summary
from models.damage import dataset_problems
from speculoos.errors import Conflict
from speculoos.reporting import SilentReporter
from speculoos.store import Store
from tests.tools.damage import flip

OPTIONS = GenerateOptions(max_tokens=8)


def source_of(folder: Path, count: int = 10, name: str = "number") -> Path:
    file = folder / f"{name}.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{name} {n}"}) + "\n" for n in range(count)))
    import_prompts(file, folder / name, SilentReporter())
    return folder / name


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return source_of(tmp_path)


def generate_rows(
    folder: Path, source: Path, options: GenerateOptions, leave_out: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Write rows as a generation does, in another order than the prompts; return the report of its last call."""
    with ShardWriter(folder) as writer:
        for conversation in reversed(list(to_answer(source, options, set()))):
            if conversation.id not in leave_out:
                conversation.answers, conversation.finish = [f"{conversation.users[0]}!"], ["stop"]
                writer.add(conversation.to_json(answer_tokens=3))
    return {"seconds": 1.0, "failed": [{"id": row_id, "reason": "no"} for row_id in leave_out]}


def store_part(tmp_path: Path, source: Path, part: ShardPart, **more: Any) -> dict[str, Any]:
    options, folder = part.options(OPTIONS), tmp_path / f"work-{part.key}"
    return store_shard(
        folder, source, options, generate_rows(folder, source, options, **more), part.key, shard_folder(tmp_path)
    )


def shard_folder(tmp_path: Path) -> ShardFolder:
    return ShardFolder(Store(f"file://{tmp_path}"), "place")


def test_parts_cover_every_prompt_once_sample_after_sample(source: Path) -> None:
    parts = plan_shards(source, replace(OPTIONS, samples=2, temperature=0.7), 4)
    assert [(p.first, p.rows, p.sample) for p in parts] == [
        *((0, 4, 0), (4, 4, 0), (8, 2, 0)),
        *((0, 4, 1), (4, 4, 1), (8, 2, 1)),
    ]
    ids = [row.id for p in parts for row in to_answer(source, p.options(OPTIONS), set())]
    assert ids == [row.id for row in to_answer(source, replace(OPTIONS, samples=2), set())]
    assert len(set(ids)) == 20 and ids[10] == f"{ids[0]}#1"
    assert [p.rows for p in plan_shards(source, replace(OPTIONS, limit=5), 4)] == [4, 1]


def test_a_key_depends_on_prompts_and_options_only(source: Path, tmp_path: Path) -> None:
    def keys(options: GenerateOptions = OPTIONS, prompts: Path = source, **author: str) -> list[str]:
        return [part.key for part in plan_shards(prompts, options, 4, **author)]

    assert len(set(keys())) == 3
    assert keys() == keys(replace(OPTIONS, batch_size=3, max_minutes=5.0))
    assert keys(replace(OPTIONS, limit=8)) == keys()[:2], "fewer prompts: the same beginnings"
    for other in (replace(OPTIONS, seed=1), replace(OPTIONS, max_tokens=9), replace(OPTIONS, system_prompt="be kind")):
        assert not set(keys(other)) & set(keys())
    assert not set(keys(weights_sha256="a")) & set(keys(weights_sha256="b"))
    assert not set(keys(prompts=source_of(tmp_path, name="word"))) & set(keys())


def test_a_shard_is_stored_in_the_order_of_its_prompts_and_storing_it_twice_changes_nothing(
    source: Path, tmp_path: Path
) -> None:
    part = plan_shards(source, OPTIONS, 4)[1]
    assert shard_folder(tmp_path).report(part.key) is None
    report = store_part(tmp_path, source, part)
    file = tmp_path / "place" / f"{part.key}.jsonl"
    assert [json.loads(line)["id"] for line in file.read_text().splitlines()] == [
        f"line-000000{n}" for n in (5, 6, 7, 8)
    ]
    counts = ("prompts", "rows", "tokens", "finish", "failed")
    assert [report[name] for name in counts] == [4, 4, 12, {"stop": 4}, []]
    assert report["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    again = store_part(tmp_path, source, part)
    assert again == report == shard_folder(tmp_path).report(part.key) and len(list(file.parent.iterdir())) == 2


def test_a_prompt_that_failed_is_counted_and_one_that_vanished_is_an_error(source: Path, tmp_path: Path) -> None:
    part = plan_shards(source, OPTIONS, 4)[2]
    report = store_part(tmp_path, source, part, leave_out=("line-0000009",))
    assert (report["prompts"], report["rows"], report["failed"]) == (2, 1, [{"id": "line-0000009", "reason": "no"}])
    options = part.options(OPTIONS)
    lost = {**generate_rows(tmp_path / "lost", source, options, ("line-0000009",)), "failed": []}
    with pytest.raises(Conflict, match="1 prompts of this shard have no answer, the first is line-0000009"):
        store_shard(tmp_path / "lost", source, options, lost, "k", shard_folder(tmp_path))


def finished(
    tmp_path: Path, source: Path, options: GenerateOptions = OPTIONS
) -> tuple[list[ShardPart], dict[str, Any]]:
    parts = plan_shards(source, options, 4)
    for part in parts:
        store_part(tmp_path, source, part)
    return parts, finished_reports(parts, shard_folder(tmp_path), tmp_path / "data")


def test_the_data_set_has_every_row_in_order_with_sums_and_counts(source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "shard-00000.jsonl").write_text("left by another time\n")
    parts, reports = finished(tmp_path, source)
    for _ in range(2):  # again, as after a kill between two files
        assert assemble(parts, reports, shard_folder(tmp_path), data) == []
    report = write_summary(data, kind="conversations", **total_report(parts, reports))
    assert [row["id"] for row in read_rows(data)] == [row["id"] for row in read_rows(source)]
    assert (report["rows"], report["prompts"], report["tokens"], report["complete"]) == (10, 10, 30, True)
    assert len(shard_files(data)) == 3 == len(report["shards"]) and dataset_problems(data) == {}


def test_a_damaged_shard_is_found_before_it_is_part_of_the_data_set_and_made_again(
    source: Path, tmp_path: Path
) -> None:
    parts, reports = finished(tmp_path, source)
    flip(tmp_path / "place" / f"{parts[1].key}.jsonl")
    assert assemble(parts, reports, shard_folder(tmp_path), tmp_path / "data") == [parts[1]]
    assert set(finished_reports(parts, shard_folder(tmp_path), tmp_path / "data")) == {parts[0].key, parts[2].key}
    store_part(tmp_path, source, parts[1])
    assert (
        assemble(
            parts,
            finished_reports(parts, shard_folder(tmp_path), tmp_path / "data"),
            shard_folder(tmp_path),
            tmp_path / "data",
        )
        == []
    )


def test_a_larger_plan_takes_over_what_the_data_set_has_already(source: Path, tmp_path: Path) -> None:
    data, short = tmp_path / "data", replace(OPTIONS, limit=8)
    parts, reports = finished(tmp_path, source, short)
    assemble(parts, reports, shard_folder(tmp_path), data)
    write_summary(data, kind="conversations", **total_report(parts, reports))
    shard_folder(tmp_path).clear()
    larger = plan_shards(source, OPTIONS, 4)
    assert set(finished_reports(larger, shard_folder(tmp_path), data)) == {part.key for part in parts}
    store_part(tmp_path, source, larger[2])
    reports = finished_reports(larger, shard_folder(tmp_path), data)
    assert assemble(larger, reports, shard_folder(tmp_path), data) == []
    write_summary(data, kind="conversations", **total_report(larger, reports))
    assert len(list(read_rows(data))) == 10


def test_unfinished_shards_are_added_after_a_stop_and_replaced_by_finished_ones(source: Path, tmp_path: Path) -> None:
    data, parts = tmp_path / "data", plan_shards(source, OPTIONS, 4)
    store_part(tmp_path, source, parts[0])
    half = tmp_path / "half"
    generate_rows(half, source, replace(OPTIONS, first=4, limit=2))
    reports = finished_reports(parts, shard_folder(tmp_path), data)
    assemble(parts, reports, shard_folder(tmp_path), data)
    assert add_unfinished(parts, {parts[1].key: half}, data) == 2
    assert len(list(read_rows(data))) == 6
    assert total_report(parts, reports)["complete"] is False
    for part in parts[1:]:
        store_part(tmp_path, source, part)
    assemble(parts, finished_reports(parts, shard_folder(tmp_path), data), shard_folder(tmp_path), data)
    assert [row["id"] for row in read_rows(data)] == [row["id"] for row in read_rows(source)]
