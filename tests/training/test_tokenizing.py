"""A dataset is tokenized once, by several processes; later the tokens are read from files."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from models.base import load_tokenizer
from speculoos.errors import BadInput, Cancelled
from speculoos.reporting import SilentReporter
from tests.training.conftest import write_dataset
from training import token_files, tokenizing
from training.batches import load_conversations
from training.masks import mask_conversation
from training.tokenizing import preview, tokenize_dataset

EOS = [2]


def chat(number: int, **fields: object) -> dict:
    turns = [("user", f"the fox {number}?"), ("assistant", "lazy dog " * (number % 5 + 1))]
    return {
        "id": f"row-{number}",
        "messages": [{"role": r, "content": c} for r, c in turns],
        "finish": ["stop"],
        **fields,
    }


class RecordingReporter(SilentReporter):
    def __init__(self, stop: bool = False):
        self.lines: list[str] = []
        self.stop = stop

    def log(self, message: str, level: str = "info") -> None:
        self.lines.append(message)

    def stop_requested(self) -> bool:
        return self.stop


@pytest.fixture
def rows() -> list[dict]:
    refused = {"id": "no answer", "messages": [{"role": "user", "content": "?"}]}
    cut = chat(90, finish=["length"], category="cut")
    return [chat(n) for n in range(60)] + [refused, cut, {**chat(91), "token_ids": [5, 6, 7], "loss_spans": [[1, 3]]}]


def make_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split shards of a few kilobytes into several chunks, and start processes for any size."""
    monkeypatch.setattr(token_files, "CHUNK_BYTES", 2500)
    monkeypatch.setattr(tokenizing, "PARALLEL_BYTES", 1)
    monkeypatch.setattr(tokenizing.os, "sched_getaffinity", lambda _: {0, 1})
    enough = SimpleNamespace(available=1 << 30)  # for two processes, whatever the machine has free
    monkeypatch.setattr(tokenizing.psutil, "virtual_memory", lambda: enough)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    make_parallel(monkeypatch)


def expected(rows: list[dict], tokenizer) -> list[tuple[str, list[int], list[bool]]]:
    masked = [(row["id"], mask_conversation(row, tokenizer)) for row in rows if row["id"] != "no answer"]
    return [(row_id, result.token_ids, result.mask) for row_id, result in masked]


@pytest.mark.integration
def test_processes_give_the_masks_of_single_rows_and_a_second_call_does_nothing(
    tiny_base: Path, rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their files equal those of one process."""
    folder, tokenizer, reporter = write_dataset(tmp_path / "d", rows), load_tokenizer(tiny_base), RecordingReporter()
    monkeypatch.setattr(token_files, "CHUNK_BYTES", 2500)
    single = tokenize_dataset(write_dataset(tmp_path / "alone", rows), tokenizer)
    make_parallel(monkeypatch)
    parallel = tokenize_dataset(folder, tokenizer, reporter=reporter)
    assert (single.processes, parallel.processes) == (1, 2) and len(parallel.chunks) > 2
    assert [single.file(p).read_bytes() for p in single.chunks] == [
        parallel.file(p).read_bytes() for p in parallel.chunks
    ]
    conversations, report = load_conversations(folder, tokenizer, 4096, reporter=reporter)
    assert [(c.id, c.token_ids.tolist(), c.mask.tolist()) for c in conversations] == expected(rows, tokenizer)
    assert {c.id: c.category for c in conversations}["row-90"] == "cut"
    assert parallel.tokens == report.tokens
    assert dict(report.dropped) == {"no response to train on": 1}
    assert report.mask_sources == {"prefixes": 61, "tokens": 1}
    assert ["Tokenized" in line for line in reporter.lines] == [True], "the second reading tokenizes nothing"


@pytest.mark.integration
def test_a_tokenizer_that_was_changed_in_memory_is_not_mistaken_for_its_folder(
    tiny_base: Path, rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer, folder = load_tokenizer(tiny_base), write_dataset(tmp_path / "d", rows)
    before = tokenize_dataset(folder, tokenizer)
    make_parallel(monkeypatch)
    tokenizer.chat_template = "the fox: " + tokenizer.chat_template
    after = tokenize_dataset(folder, tokenizer)
    assert before.folder != after.folder and after.tokens > 0
    conversations, _ = load_conversations(folder, tokenizer, 4096)
    assert [(c.id, c.token_ids.tolist(), c.mask.tolist()) for c in conversations] == expected(rows, tokenizer)


def test_only_a_new_shard_is_tokenized_and_files_of_a_removed_one_are_deleted(
    tiny_base: Path, rows: list[dict], tmp_path: Path
) -> None:
    tokenizer, folder = load_tokenizer(tiny_base), write_dataset(tmp_path / "d", rows)
    first = tokenize_dataset(folder, tokenizer)
    extra = [chat(n) for n in range(100, 103)]
    (folder / "shard-00001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in extra))
    (folder / "dataset.json").unlink()
    second = tokenize_dataset(folder, tokenizer)
    assert second.tokens == sum(len(mask_conversation(row, tokenizer).token_ids) for row in extra) < first.tokens
    (folder / "shard-00000.jsonl").unlink()
    (folder / "shard-00002.jsonl").write_text(json.dumps(chat(7)) + "\n")
    tokenize_dataset(folder, tokenizer)
    assert len(list(second.folder.iterdir())) == 2


def test_a_damaged_file_is_made_again(tiny_base: Path, rows: list[dict], tmp_path: Path) -> None:
    tokenizer, folder = load_tokenizer(tiny_base), write_dataset(tmp_path / "d", rows)
    tokenized = tokenize_dataset(folder, tokenizer)
    (file,) = tokenized.folder.iterdir()
    good = file.read_bytes()
    for bad in (good[: len(good) // 2], good[:-40] + bytes(b ^ 1 for b in good[-40:])):
        file.write_bytes(bad)
        assert tokenize_dataset(folder, tokenizer).tokens == tokenized.tokens and file.read_bytes() == good


def test_reading_costs_no_memory_until_rows_are_looked_at(tiny_base: Path, tmp_path: Path) -> None:
    tokenizer, folder = load_tokenizer(tiny_base), write_dataset(tmp_path / "d", [chat(n) for n in range(5)])
    conversations, _ = load_conversations(folder, tokenizer, 64)
    pointers = {c.token_ids.untyped_storage().data_ptr() for c in conversations}
    assert len(pointers) == 1 and conversations[0].token_ids.dtype == torch.int32, "all rows are views of one mapping"


@pytest.mark.integration
def test_a_broken_line_in_a_later_chunk_is_named(tiny_base: Path, tmp_path: Path, small_chunks: None) -> None:
    folder = write_dataset(tmp_path / "d", [chat(n) for n in range(60)])
    lines = (folder / "shard-00000.jsonl").read_text().splitlines()
    lines[47] = '{"id": '
    (folder / "shard-00000.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(BadInput, match="shard-00000.jsonl line 48: invalid JSON"):
        tokenize_dataset(folder, load_tokenizer(tiny_base))


@pytest.mark.integration
def test_a_stop_ends_the_processes_and_the_next_attempt_goes_on(
    tiny_base: Path, rows: list[dict], tmp_path: Path, small_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, tokenizer = write_dataset(tmp_path / "d", rows), load_tokenizer(tiny_base)
    with pytest.raises(Cancelled):
        tokenize_dataset(folder, tokenizer, reporter=RecordingReporter(stop=True))
    monkeypatch.setattr(tokenizing, "PARALLEL_BYTES", 1 << 40)  # in this process, as starting others takes seconds
    assert tokenize_dataset(folder, tokenizer).tokens > 0


def test_the_preview_stores_the_tokens_that_training_reads(tiny_base: Path, rows: list[dict], tmp_path: Path) -> None:
    from models.base import read_eos_ids

    folder, tokenizer = write_dataset(tmp_path / "d", rows), load_tokenizer(tiny_base)
    shown = preview(folder, tiny_base, limit=3)
    assert [row["id"] for row in shown] == ["row-0", "row-1", "row-2"] and shown[0]["loss_tokens"] > 0
    assert tokenize_dataset(folder, tokenizer, read_eos_ids(tiny_base, tokenizer)).tokens == 0


def test_the_preview_goes_on_over_shards_of_few_rows(tiny_base: Path, rows: list[dict], tmp_path: Path) -> None:
    folder, tokenizer = write_dataset(tmp_path / "d", rows[:1]), load_tokenizer(tiny_base)
    for number, row in enumerate(rows[1:6], 1):
        (folder / f"shard-{number:05d}.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "dataset.json").unlink()
    shown = preview(folder, tiny_base, limit=4)
    assert [row["id"] for row in shown] == [f"row-{n}" for n in range(4)]
    counts = [(row["tokens"], row["loss_tokens"]) for row in shown]
    masks = [mask_conversation(row, tokenizer).mask for row in rows[:4]]
    assert counts == [(len(mask), sum(mask)) for mask in masks]
    assert len(list((folder / tokenizing.FOLDER).rglob("*.safetensors"))) == 4, "shards that are not shown wait"
    assert len(preview(folder, tiny_base, limit=20)) == 6


def test_the_tokens_of_a_read_only_dataset_are_in_the_cache(
    tiny_base: Path, rows: list[dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tokenizing.os, "access", lambda *_: False)
    folder, tokenizer = write_dataset(tmp_path / "d", rows), load_tokenizer(tiny_base)
    tokenized = tokenize_dataset(folder, tokenizer)
    assert tokenized.folder.is_relative_to(tmp_path / "cache") and not (folder / tokenizing.FOLDER).exists()
    assert tokenize_dataset(folder, tokenizer).tokens == 0
    shutil.rmtree(tmp_path / "cache")
