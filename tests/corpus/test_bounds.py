"""Small files that expand to a lot of data are read in bounded memory and time, with a short error message.

Each file is read as by the import, in a separate process whose peak memory is measured.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from corpus.importing import import_prompts
from corpus.prompts import read_prompts
from corpus.readers import MAX_ROW_BYTES
from corpus.rows import BadRow, ImportedRow
from corpus.shards import read_rows
from speculoos.errors import BadInput
from speculoos.reporting import SilentReporter

MIB = 2**20
READ = """
import json, sys
from corpus.prompts import read_prompts
from corpus.rows import BadRow
from speculoos.errors import BadInput
found, bad, said = 0, [], ""
try:
    for row in read_prompts(sys.argv[1]):
        found += 1
        bad += [[row.line, row.reason]] if isinstance(row, BadRow) and len(bad) < 3 else []
except BadInput as error:
    said = str(error)
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([found, bad, said, peak / 1024]))
"""


def read(path: Path) -> tuple[int, list[list], str, float]:
    """Number of rows, the first bad rows, the error for the whole file, and the reader's peak memory in MiB."""
    process = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stderr
    return tuple(json.loads(process.stdout))


def repeated(text: str, times: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int8)), pa.array([text]))


def bombs(folder: Path) -> dict[str, Path]:
    long = pa.array(["x" * (64 * MIB)])
    tables = {
        "one value of 4 MiB in 300 rows": pa.table({"prompt": repeated("x" * (4 * MIB), 300)}),
        "a thousand values of 1 MiB in one row": pa.table(
            {"turns": pa.ListArray.from_arrays([0, 1000], repeated("x" * MIB, 1000))}
        ),
        "ten million values in one row": pa.table(
            {"turns": pa.ListArray.from_arrays([0, 10_000_000], repeated("a", 10_000_000))}
        ),
        "one value of 64 MiB": pa.table({"prompt": long}),
    }
    paths = {}
    for name, table in tables.items():
        paths[name] = folder / f"{len(paths)}.parquet"
        pq.write_table(table, paths[name], compression="zstd", write_statistics=False)
    return paths


@pytest.mark.integration
def test_a_parquet_file_of_some_hundred_bytes_takes_no_gigabyte(tmp_path: Path) -> None:
    for name, path in bombs(tmp_path).items():
        assert path.stat().st_size < 3000, name
        count, bad, error, peak = read(path)
        assert count in (1, 300) and not error and peak < 300, (name, count, error, peak)
        assert any(reason in bad[0][1] for reason in ("longer than 1 MiB", "are too many")), (name, bad)


def test_rows_beside_a_long_one_are_kept_and_other_columns_are_not_read(tmp_path: Path) -> None:
    rows = [{"prompt": "one", "picture": b"0" * (3 * MIB)}, {"prompt": "x" * (2 * MIB)}, {"prompt": "three"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    first, second, third = read_prompts(tmp_path / "x.parquet")
    assert isinstance(first, ImportedRow) and (third.line, third.messages[0]["content"]) == (3, "three")
    assert second == BadRow(2, "longer than 1 MiB")


@pytest.mark.parametrize("groups", [1, 7, 10_000])
def test_every_shape_of_column_gives_what_was_written(tmp_path: Path, groups: int) -> None:
    """Structs in lists, maps, nulls, numbers and times, in row groups of any size."""
    rows = [
        {
            "messages": [{"role": "user", "content": f"{n} é"}, {"role": "assistant", "content": None}][: 1 + n % 2],
            "Category ": "even" if n % 2 == 0 else None,
            "id": n,
            "source": f"set {n % 3}",
        }
        for n in range(50)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet", row_group_size=groups)
    imported = list(read_prompts(tmp_path / "x.parquet"))
    assert [row.line for row in imported] == list(range(1, 51))
    even = [row for row in imported if isinstance(row, ImportedRow)]
    assert [row.messages[0]["content"] for row in even] == [f"{n} é" for n in range(0, 50, 2)]
    assert even[3].category == "even" and even[3].source == {"id": 6, "source": "set 0"}
    assert "expected text, found nothing" in imported[1].reason


def test_an_unclosed_quote_is_reported_by_its_line_and_costs_no_time(tmp_path: Path) -> None:
    text = 'prompt\nfine\n"two lines,\nclosed"\nhe said "hi"\n"never closed\n' + "\n" * 300_000 + "x\n" * 20_000
    (tmp_path / "x.csv").write_text(text)
    rows = list(read_prompts(tmp_path / "x.csv"))
    (bad,) = [row for row in rows if isinstance(row, BadRow)]
    assert bad.line == 6 and "a quote is not closed within 1 MiB or 10,000 lines" in bad.reason
    assert "lines 6 to 10006 are left out" in bad.reason
    assert [row.messages[0]["content"] for row in rows if isinstance(row, ImportedRow)][:2] == [
        "fine",
        "two lines,\nclosed",
    ]
    assert len(rows) > 20_000, "reading went on behind it"


@pytest.mark.integration
def test_json_is_read_in_the_memory_of_its_largest_record(tmp_path: Path) -> None:
    many = "[" + "[]," * 1000 + "0],"
    (tmp_path / "many.json").write_text('{"version": 1, "data": [' + many * 3000 + '{"prompt": "last"}]}')
    (tmp_path / "line.jsonl").write_text('{"prompt": "' + "x" * (16 * MIB) + '"}\n{"prompt": "b"}\n')
    (tmp_path / "one.json").write_text('{"prompt": "' + "x" * (16 * MIB) + '"}')
    (tmp_path / "wide.json").write_text("{" + ",".join(f'"{n}": {n}' for n in range(200_000)) + "}")
    (tmp_path / "deep.json").write_text('{"data": [' + "[" * 100_000)
    count, bad, _, peak = read(tmp_path / "many.json")
    assert count == 3001 and bad[0] == [1, "expected an object, found a list"] and peak < 100
    count, bad, _, peak = read(tmp_path / "line.jsonl")
    assert (count, bad) == (2, [[1, "longer than 1 MiB"]]) and peak < 100
    for name in ("one.json", "wide.json"):
        count, _, error, peak = read(tmp_path / name)
        assert count == 0 and "longer than 1 MiB" in error and peak < 200, (name, error, peak)
    count, bad, _, peak = read(tmp_path / "deep.json")
    assert "nested too deeply" in bad[0][1] and peak < 100


def test_an_array_on_one_line_keeps_every_record(tmp_path: Path) -> None:
    """`json.dump` writes no line breaks; rows that share a line must not share an id."""
    (tmp_path / "x.json").write_text(json.dumps([{"prompt": str(n)} for n in range(5)]))
    assert import_prompts(tmp_path / "x.json", tmp_path / "out", SilentReporter())["rows"] == 5
    rows = list(read_rows(tmp_path / "out"))
    assert [row["messages"][0]["content"] for row in rows] == list("01234")
    assert rows[0]["id"] == "line-0000001" and len({row["id"] for row in rows}) == 5


@pytest.mark.parametrize(
    ("start", "kind"), [(b"\x1f\x8b", "gzip"), (b"PK\x03\x04", "zip"), (b"\x28\xb5\x2f\xfd", "zstd")]
)
def test_packed_files_are_never_unpacked_here(tmp_path: Path, start: bytes, kind: str) -> None:
    (tmp_path / "x.jsonl").write_bytes(start + b"0" * 100)
    with pytest.raises(BadInput, match=rf"is compressed \({kind}\); decompress it"):
        list(read_prompts(tmp_path / "x.jsonl"))


def test_what_unpacks_to_a_hundred_times_its_size_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("corpus.importing.MAX_UNPACKED_BYTES", 10 * MIB)
    pq.write_table(pa.table({"prompt": repeated("x" * (MAX_ROW_BYTES // 2), 100)}), tmp_path / "x.parquet")
    with pytest.raises(BadInput, match=r"x\.parquet: unpacks to more than \d+ MiB; import a smaller part"):
        import_prompts(tmp_path / "x.parquet", tmp_path / "out", SilentReporter())
    assert not (tmp_path / "out").exists()
