"""Prompt files in common formats; every bad row is reported by line and reason (issue 2, line 3)."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from corpus.importing import import_prompts
from corpus.prompts import read_prompts
from corpus.readers import MAX_ROW_BYTES
from corpus.rows import BadRow, ImportedRow
from corpus.shards import read_rows, read_summary
from speculoos.errors import BadInput, Cancelled
from speculoos.reporting import SilentReporter

HI = [{"role": "user", "content": "hi"}]
SHAPES = {
    "from/value": ({"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "yo"}]}, HI, ["yo"]),
    "any case": (
        {"conversations": [{"from": "User", "value": "hi"}, {"from": "ASSISTANT", "value": "yo"}]},
        HI,
        ["yo"],
    ),
    "role/content": ({"conversations": [{"role": "user", "content": "hi"}]}, HI, []),
    "messages": ({"messages": [*HI, {"role": "assistant", "content": "yo"}]}, HI, ["yo"]),
    "text parts": ({"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}, HI, []),
    "prompt": ({"prompt": "hi"}, HI, []),
    "prompt and answer": ({"prompt": "hi", "response": "yo"}, HI, ["yo"]),
    "prompt of messages": ({"prompt": HI}, HI, []),
    "question and answer": ({"question": "hi", "answer": "yo"}, HI, ["yo"]),
    "alpaca": ({"instruction": "hi", "input": "", "output": "yo"}, HI, ["yo"]),
    "alpaca with input": ({"instruction": "add", "input": "1, 2"}, [{"role": "user", "content": "add\n\n1, 2"}], []),
    "capital keys": ({"Prompt": "hi"}, HI, []),
    "bare text": ("hi", HI, []),
    "leading greeting": ({"messages": [{"role": "assistant", "content": "hello"}, *HI]}, HI, []),
    "turns": ({"turns": ["hi", "more"]}, [*HI, {"role": "user", "content": "more"}], []),
    "turns with answers": ({"turns": ["hi"], "reference": ["yo"]}, HI, ["yo"]),
    "system field": ({"system": "be kind", "prompt": "hi"}, [{"role": "system", "content": "be kind"}, *HI], []),
    "system turn": (
        {"messages": [{"role": "system", "content": "be kind"}, *HI]},
        [{"role": "system", "content": "be kind"}, *HI],
        [],
    ),
    "answer missing in between": (
        {"messages": [*HI, {"role": "user", "content": "again"}, {"role": "assistant", "content": "yo"}]},
        [*HI, {"role": "user", "content": "again"}],
        ["", "yo"],
    ),
}
REASONS = {
    "no prompt": {"text": "hi"},
    "expected an object, found a list": [1],
    "expected an object, found nothing": None,
    "a user turn is empty": {"messages": [{"role": "user", "content": "  "}]},
    "there is no user turn": {"messages": [{"role": "assistant", "content": "yo"}]},
    "role 'tool' is not": {"messages": [*HI, {"role": "tool", "content": "x"}]},
    "messages[0]: expected a message": {"messages": ["hi", 3]},
    "expected text, found a number": {"prompt": 3},
    "only text parts": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
    "unpaired surrogate": {"prompt": "\ud83d"},
    "user turns; at most": {"turns": ["x"] * 300},
}


def rows_of(path: Path, **options: int) -> list[ImportedRow | BadRow]:
    return list(read_prompts(path, **options))


KINDS = [(s, k) for s in SHAPES for k in ("jsonl", "json", "parquet") if s != "bare text" or k != "parquet"]


@pytest.mark.parametrize(("shape", "kind"), KINDS)
def test_every_shape_gives_user_turns_and_keeps_answers(tmp_path: Path, shape: str, kind: str) -> None:
    value, messages, reference = SHAPES[shape]
    path = tmp_path / f"x.{kind}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([value]), path)
    else:
        path.write_text(json.dumps(value) + "\n" if kind == "jsonl" else json.dumps([value]))
    (row,) = rows_of(path)
    assert isinstance(row, ImportedRow), row
    assert (row.messages, row.reference) == (messages, reference)


@pytest.mark.parametrize("reason", REASONS)
def test_a_row_without_a_usable_prompt_says_why(tmp_path: Path, reason: str) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(REASONS[reason]) + "\n" + json.dumps({"prompt": "hi"}))
    bad, good = rows_of(tmp_path / "x.jsonl")
    assert isinstance(bad, BadRow) and reason in bad.reason and bad.line == 1
    assert isinstance(good, ImportedRow)


def test_broken_lines_are_reported_and_the_rest_is_imported(tmp_path: Path) -> None:
    """An invalid JSON line, a row without prompts, a wrong encoding, too deep, too long; a blank line is no row."""
    lines = [b'{"prompt": "one"}', b'{"prompt": "tw', b'{"answer": "no"}', b'{"prompt": "caf\xe9"}', b""]
    deep, long = b"[" * 200_000, b'{"prompt": "' + b"x" * MAX_ROW_BYTES + b'"}'
    lines += [deep, long, '{"prompt": "drei \U0001f600"}'.encode()]
    (tmp_path / "x.jsonl").write_bytes(b"\r\n".join(lines))
    report = import_prompts(tmp_path / "x.jsonl", tmp_path / "out", SilentReporter())
    assert (report["rows_read"], report["rows"], report["bad_rows"]) == (7, 2, 5)
    reasons = {b["line"]: b["reason"] for b in report["bad"]}
    assert sorted(reasons) == [2, 3, 4, 6, 7]
    for line, start in (
        (2, "invalid JSON"),
        (3, "no prompt"),
        (4, "wrong encoding: byte 16"),
        (6, "nested"),
        (7, "longer"),
    ):
        assert reasons[line].startswith(start), reasons[line]
    assert [r["messages"][0]["content"] for r in read_rows(tmp_path / "out")] == ["one", "drei \U0001f600"]
    bad_rows = [json.loads(line) for line in (tmp_path / "out" / "bad.jsonl").read_text().splitlines()]
    assert bad_rows == report["bad"] and read_summary(tmp_path / "out")["kind"] == "prompts"


def test_a_json_array_is_read_piece_by_piece(tmp_path: Path) -> None:
    items = [{"prompt": f"number {i} é\n" * (1 + i % 50)} for i in range(3000)]
    (tmp_path / "x.json").write_text(json.dumps(items, indent=2, ensure_ascii=False), encoding="utf-8")
    rows = rows_of(tmp_path / "x.json")
    assert [r.messages[0]["content"] for r in rows] == [i["prompt"] for i in items]
    assert [r.line for r in rows[:3]] == [1, 2, 3]


def test_a_broken_array_keeps_what_came_before_and_says_that_the_rest_is_lost(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(
        b'[{"prompt": "one"},\n{"prompt": "caf\xe9"},\n{"prompt": oops}, {"prompt": "x"}]'
    )
    good, coded, broken = rows_of(tmp_path / "x.json")
    assert isinstance(good, ImportedRow)
    assert coded == BadRow(2, "prompt: contains an unpaired surrogate")
    assert broken.line == 3 and "the rest of the file is not read" in broken.reason


def test_json_objects_with_data_and_jsonl_called_json_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"data": [{"prompt": "a"}, {"prompt": "b"}]}))
    (tmp_path / "b.json").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "c.txt").write_text('\ufeff{"prompt": "a"}\n{"prompt": "b"}\n', encoding="utf-8")
    for name in ("a.json", "b.json", "c.txt"):
        assert [r.messages[0]["content"] for r in rows_of(tmp_path / name)] == ["a", "b"], name


def test_csv_rows_may_span_lines_and_bad_ones_are_reported_by_line(tmp_path: Path) -> None:
    text = b'prompt,category\r\n"two\nlines",a\r\nplain,b\r\n,c\r\nx,d,e\r\n' + b"caf\xe9,f\r\n" + "ü,g\r\n".encode()
    (tmp_path / "x.csv").write_bytes(text)
    rows = rows_of(tmp_path / "x.csv")
    assert [(r.line, r.category) for r in rows if isinstance(r, ImportedRow)] == [(2, "a"), (4, "b"), (8, "g")]
    reasons = {r.line: r.reason for r in rows if isinstance(r, BadRow)}
    assert reasons[5].startswith("no prompt") and "3 columns where the header has 2" in reasons[6]
    assert reasons[7].startswith("wrong encoding")


def test_an_unclosed_quote_is_reported_with_the_lines_it_contains(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('prompt\none\n"two\nthree\nfour\n')
    good, bad = rows_of(tmp_path / "x.csv")
    assert good.messages[0]["content"] == "one"
    assert bad.line == 3 and "a quote is not closed by the end of the file, lines 3 to 5" in bad.reason


def test_csv_of_a_european_spreadsheet_and_tsv_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_bytes(b"\xef\xbb\xbfPrompt;Category\r\nhi, you;a\r\n")
    (tmp_path / "x.tsv").write_text("prompt\tcategory\nhi, you\ta\n")
    for name in ("x.csv", "x.tsv"):
        (row,) = rows_of(tmp_path / name)
        assert (row.messages[0]["content"], row.category) == ("hi, you", "a")


def test_csv_cells_may_hold_json(tmp_path: Path) -> None:
    cell = json.dumps(HI).replace('"', '""')
    (tmp_path / "x.csv").write_text(f'messages\n"{cell}"\n[broken\n')
    good, bad = rows_of(tmp_path / "x.csv")
    assert good.messages == HI and "invalid JSON in this cell" in bad.reason


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.jsonl", b"", "is empty"),
        ("x.jsonl", "hi".encode("utf-16"), "UTF-16"),
        ("x.bin", b"\x89PNG\r\n", "unknown file format"),
        ("x.parquet", b"PAR1 and then nothing", "broken parquet"),
        ("x.json", b'{\n"prompt": ', "invalid JSON"),
        ("x.csv", b'"pro"mpt,x\nhello,1\n', "broken CSV: .*, in the header"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_as_a_whole(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(BadInput, match=message):
        import_prompts(tmp_path / name, tmp_path / "out", SilentReporter())
    assert [p.name for p in tmp_path.iterdir()] == [name], "something was left behind"


def test_limits_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(10)))
    assert len(rows_of(path, limit=4)) == 4
    assert len(rows_of(path, max_rows=10)) == 10
    with pytest.raises(BadInput, match="more than 9 rows"):
        rows_of(path, max_rows=9)
    with pytest.raises(BadInput, match="no usable prompt among 1 rows. The first: line 1, no prompt"):
        (tmp_path / "y.jsonl").write_text('{"x": 1}\n')
        import_prompts(tmp_path / "y.jsonl", tmp_path / "out", SilentReporter())


def test_a_stop_leaves_nothing_behind(tmp_path: Path) -> None:
    class Stopping(SilentReporter):
        def stop_requested(self) -> bool:
            return True

    (tmp_path / "x.jsonl").write_text('{"prompt": "a"}\n' * 600)
    with pytest.raises(Cancelled):
        import_prompts(tmp_path / "x.jsonl", tmp_path / "out", Stopping())
    assert not (tmp_path / "out").exists()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.lists(st.binary(max_size=60), max_size=8), ending=st.sampled_from([".jsonl", ".json", ".csv", ".txt"]))
def test_no_bytes_crash_the_reader(tmp_path: Path, data: list[bytes], ending: str) -> None:
    path = tmp_path / f"x{ending}"
    path.write_bytes(b'[{"prompt": "a"}\n'[:: 1 if len(data) % 2 else -1] + b"\n".join(data))
    try:
        rows = rows_of(path)
    except BadInput:
        return
    assert all(isinstance(r, ImportedRow | BadRow) for r in rows)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "from", "value", "x"]), inner),
    max_leaves=6,
)
KEYS = ["messages", "conversations", "prompt", "turns", "instruction", "input", "system", "reference", "output"]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1))
def test_no_record_crashes_the_parser(tmp_path: Path, value: dict) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(value) + "\n")
    (row,) = rows_of(tmp_path / "x.jsonl")
    assert isinstance(row, BadRow) or all(m["content"].strip() for m in row.messages)


@pytest.mark.parametrize("field", ["output", "category", "source", "id", "reference"])
def test_half_a_character_anywhere_leaves_one_row_out(tmp_path: Path, field: str) -> None:
    half = {"prompt": "hi", field: ["\ud83d"] if field == "reference" else "smile \ud83d"}
    half = {"turns": ["hi"], **half} if field == "reference" else half
    (tmp_path / "x.jsonl").write_text(json.dumps({"prompt": "ok"}) + "\n" + json.dumps(half) + "\n")
    report = import_prompts(tmp_path / "x.jsonl", tmp_path / "out", SilentReporter())
    assert report["rows"] == 1 and [bad["line"] for bad in report["bad"]] == [2]
    assert "unpaired surrogate" in report["bad"][0]["reason"]


def test_bytes_that_are_not_utf8_inside_one_object_leave_their_row_out(tmp_path: Path) -> None:
    rows = b'{"data": [{"prompt": "a", "category": "\xff"}, {"prompt": "b"}]}'
    (tmp_path / "x.json").write_bytes(rows)
    report = import_prompts(tmp_path / "x.json", tmp_path / "out", SilentReporter())
    assert report["rows"] == 1 and report["bad_rows"] == 1


@pytest.mark.parametrize("content", [b"5", b"null", b"true", b"\xef\xbb\xbf", b"\xef\xbb\xbf  \n ", b"", b"\n" * 9000])
def test_a_json_file_without_a_record_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"x\.json"):
        import_prompts(tmp_path / "x.json", tmp_path / "out", SilentReporter())


def test_the_real_prompts_are_all_read(shared_data: Path, tmp_path: Path) -> None:
    report = import_prompts(shared_data / "prompts_train.jsonl", tmp_path / "train", SilentReporter())
    assert (report["rows_read"], report["rows"], report["bad_rows"]) == (5762, 5762, 0)
    report = import_prompts(shared_data / "mt_bench" / "question.jsonl", tmp_path / "mt", SilentReporter())
    assert report["rows"] == 80 and report["turns"] == {"2": 80} and len(report["categories"]) == 8
    first = next(read_rows(tmp_path / "mt"))
    assert [m["role"] for m in first["messages"]] == ["user", "user"] and first["source"]["question_id"] == 81
