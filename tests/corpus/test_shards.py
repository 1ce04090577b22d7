"""A dataset whose files changed after writing is detected before it is used."""

import json
from pathlib import Path

import pytest

from corpus.importing import import_prompts
from corpus.shards import ShardWriter, read_rows, write_summary
from evaluation.questions import read_questions
from models.damage import dataset_problems
from speculoos.checksums import CHECKSUM_FILE, ChecksumCache, read_checksums
from speculoos.errors import BadInput, Damaged
from speculoos.reporting import SilentReporter
from tests.tools.damage import cut, flip


def write(folder: Path, rows: int = 60, shard: int = 20) -> Path:
    """A finished dataset of `rows` rows."""
    with ShardWriter(folder, rows=shard) as shards:
        for number in range(rows):
            shards.add({"id": str(number), "messages": [{"role": "user", "content": f"question {number}"}]})
    write_summary(folder, kind="prompts", rows=rows)
    return folder


def keep_lines(file: Path, count: int) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:count]))


READERS = [lambda f: list(read_rows(f)), lambda f: read_questions(f, 3)]
IDS = ["corpus", "evaluation"]


@pytest.mark.parametrize("read", READERS, ids=IDS)
def test_a_shard_cut_from_60_rows_to_10_is_detected(tmp_path: Path, read) -> None:
    folder = write(tmp_path / "data", shard=60)
    assert read(folder)
    keep_lines(folder / "shard-00000.jsonl", 10)
    with pytest.raises(Damaged, match=r"shard-00000\.jsonl is damaged"):
        read(folder)


@pytest.mark.parametrize("read", READERS, ids=IDS)
def test_sets_without_sums_load_and_their_rows_are_counted(tmp_path: Path, read) -> None:
    folder = write(tmp_path / "data", shard=60)
    (folder / CHECKSUM_FILE).unlink()
    assert read(folder)
    keep_lines(folder / "shard-00000.jsonl", 10)
    with pytest.raises(Damaged, match="counts 60 rows, the shards hold 10"):
        read(folder)


def test_a_flipped_bit_and_a_lost_shard_are_detected(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    assert len(read_checksums(folder)) == 3 and dataset_problems(folder, ChecksumCache(tmp_path / "sums.json")) == {}
    flip(folder / "shard-00001.jsonl", 1)
    (folder / "shard-00002.jsonl").unlink()
    problems = dataset_problems(folder, ChecksumCache(tmp_path / "sums.json"))
    assert [*problems] == ["shard-00001.jsonl", "shard-00002.jsonl"] and problems["shard-00002.jsonl"] == "is missing"


def test_an_unfinished_set_makes_the_rows_of_a_damaged_shard_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    (folder / "dataset.json").unlink()
    cut(folder / "shard-00001.jsonl")
    write(folder)
    assert sorted(int(row["id"]) for row in read_rows(folder)) == list(range(60))
    assert dataset_problems(folder) == {}


def test_a_shard_without_its_line_in_the_sums_is_whole(tmp_path: Path) -> None:
    """The writer was killed between writing the shard and its checksum."""
    folder = write(tmp_path / "data")
    lines = (folder / CHECKSUM_FILE).read_text().splitlines(keepends=True)
    (folder / CHECKSUM_FILE).write_text("".join(lines[:2]))
    assert len(list(read_rows(folder))) == 60
    with ShardWriter(folder):
        pass
    assert (folder / CHECKSUM_FILE).read_text() == "".join(lines)


def test_imported_prompts_have_sums(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"number {n}"}) + "\n" for n in range(5)))
    import_prompts(tmp_path / "prompts.jsonl", tmp_path / "data", SilentReporter())
    assert list(read_checksums(tmp_path / "data")) == ["shard-00000.jsonl"]
    flip(tmp_path / "data" / "shard-00000.jsonl", 8)
    with pytest.raises(Damaged):
        list(read_rows(tmp_path / "data"))


@pytest.mark.parametrize("text", ["[1]", "text", '{"rows": "many"'])
def test_a_broken_summary_is_an_error(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path / "data")
    (folder / "dataset.json").write_text(text)
    with pytest.raises((Damaged, BadInput), match=r"dataset\.json"):
        list(read_rows(folder))
