"""Mapped column names: how they are read, which mappings are refused, and the preview of a file."""

import json
from pathlib import Path

import pytest

from corpus.answered import read_answered
from corpus.import_preview import MAX_MESSAGE_CHARS, columns, import_problem, preview
from corpus.importing import ImportReport, import_prompts
from corpus.prompts import read_prompts
from corpus.rows import BadRow, check_mapping, parse_mapping
from corpus.shards import count_lengths
from speculoos.errors import BadInput
from speculoos.limited import run_limited
from speculoos.reporting import SilentReporter

LINES = [
    {"Frage": "Wer?", "Antwort": "Ada.", "prompt": "not this one", "category": "who"},
    {"Frage": "", "Antwort": "Nobody asked."},
    {"Frage": "Wann?", "Antwort": "Gestern."},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "fragen.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in LINES))
    return path


def test_mapped_columns_take_precedence(file: Path) -> None:
    good, bad, last = read_prompts(file, mapping={"prompt": "Frage", "answer": "antwort"})
    assert good.messages == [{"role": "user", "content": "Wer?"}]
    assert (good.reference, good.category) == (["Ada."], "who")
    assert isinstance(bad, BadRow) and bad.reason == "no prompt: 'frage' is missing or empty"
    assert last.messages[0]["content"] == "Wann?"


def test_mapped_answers_are_kept(file: Path) -> None:
    first, _, _ = read_answered(file, mapping={"prompt": "Frage", "answer": "Antwort"})
    assert [m["content"] for m in first.messages] == ["Wer?", "Ada."]


def test_the_messages_column_can_be_mapped(tmp_path: Path) -> None:
    chat = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    path = tmp_path / "chats.jsonl"
    path.write_text(json.dumps({"Dialog": chat}) + "\n")
    (row,) = read_answered(path, mapping={"messages": "dialog"})
    assert [m["content"] for m in row.messages] == ["Hi", "Hello"]
    (bad,) = read_answered(path)
    assert isinstance(bad, BadRow)


def test_columns_of_a_table_are_read_by_their_own_names(tmp_path: Path) -> None:

    import pyarrow.parquet

    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"Frage": ["Wer?"], "Antwort": ["Ada."], "other": ["x"]}), path)
    (row,) = read_prompts(path, mapping={"prompt": "Frage", "answer": "Antwort"})
    assert (row.messages[0]["content"], row.reference) == ("Wer?", ["Ada."])
    assert columns(str(path)) == ["Frage", "Antwort", "other"]


@pytest.mark.parametrize(
    ("mapping", "message"),
    [({"question": "x"}, "'question' is none of"), ({"answer": "x"}, "column of the prompt")],
)
def test_invalid_mappings_are_refused(mapping: dict[str, str], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check_mapping(mapping)


def test_pairs_of_the_command_line_are_read() -> None:
    assert parse_mapping(["prompt=Frage", "answer=a=b"]) == {"prompt": "frage", "answer": "a=b"}
    assert parse_mapping([]) == {}
    with pytest.raises(BadInput, match="--field prompt: expected NAME=COLUMN"):
        parse_mapping(["prompt"])


@pytest.mark.integration
def test_a_preview_shows_rows_as_they_would_be_read(file: Path) -> None:
    result = run_limited("corpus.import_preview:preview", str(file), False, {}, seconds=20, memory=2 << 30)
    assert result["columns"] == ["Frage", "Antwort", "prompt", "category"]
    first, second, _ = result["rows"]
    assert first["messages"] == [{"role": "user", "content": "not this one"}]
    assert "no prompt" in second["reason"]
    mapped = preview(str(file), False, {"prompt": "Frage", "answer": "Antwort"})["rows"][0]
    assert [m["role"] for m in mapped["messages"]] == ["user", "reference"]
    answered = preview(str(file), True, {"prompt": "Frage", "answer": "Antwort"})["rows"][0]
    assert [m["role"] for m in answered["messages"]] == ["user", "assistant"]


def test_a_file_without_usable_rows_is_known_before_the_import(file: Path, tmp_path: Path) -> None:
    assert import_problem(str(file), False, {}) == "", "one row can be read"
    path = tmp_path / "other.jsonl"
    path.write_text('{"title": "a"}\n' * 7)
    assert import_problem(str(path), False, {}).startswith("line 1: ")
    assert import_problem(str(path), False, {"prompt": "title"}) == ""


def test_a_preview_is_short(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("prompt\n" + "\n".join("x" * 5_000 for _ in range(50)))
    result = preview(str(path), False, {})
    assert len(result["rows"]) == 5 and len(result["rows"][0]["messages"][0]["content"]) == MAX_MESSAGE_CHARS
    path.write_text("")
    with pytest.raises(BadInput, match="empty"):
        preview(str(path), False, {})


def test_an_import_keeps_what_was_mapped_and_counts_lengths(file: Path, tmp_path: Path) -> None:
    report = import_prompts(file, tmp_path / "out", SilentReporter(), mapping={"prompt": "Frage"})
    assert (report["rows"], report["bad_rows"]) == (2, 1)
    assert report["lengths_in_characters"] == [(4, 1), (8, 1)]
    assert "lengths" in ImportReport().to_json(with_tokens=True)


def test_lengths_and_cut_answers_are_counted_from_shards(tmp_path: Path) -> None:
    rows = [{"id": str(n), "token_ids": [1] * n, "finish": ["stop", "length"][: 1 + n % 2]} for n in (3, 4, 9)]
    (tmp_path / "shard-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = count_lengths(tmp_path)
    assert counts == {"lengths": [(4, 2), (16, 1)], "cut_answers": 2}
